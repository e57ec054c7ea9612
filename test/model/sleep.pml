// SPDX-License-Identifier: Apache-2.0
// Sleeping and waking (include/rankfold/context.hpp: publish, sleep_until_arrived, mark): N ranks publish
// step after step for ever and wait for all peers at each, asleep whenever they can be. In some runs a
// thread aborts, at any time, and ranks may stay away from the next call. There are neither slices nor
// deadlines here: if a wake-up were missed, all would stand still, which the checker reports as an
// invalid end state.
//
// Checked: nobody sleeps for ever; after an abort every rank ends, whether it slept, was about to, or
// had just written over the mark; no rank publishes after an abort without finding the mark.
//
// Steps count modulo 4 (steps.pml shows that what can meet differs by less); a word is 2 · step + mark.
//
// Faults, each of which the checker must find:
//   FAULT_LOOK_BEFORE_STORE   publish looks for sleepers, then stores
//   FAULT_STORE_BUFFERED      publish stores without seq_cst: the store may leave the CPU after the look
//   FAULT_NO_ANNOUNCE         the sleeper does not count itself
//   FAULT_ANNOUNCE_LATE       the sleeper looks, counts itself, then sleeps whatever the word is
//   FAULT_NO_COMPARE          the futex does not compare (and the sleeper does not look again)
//   FAULT_WAKE_ONE            publish wakes one of the sleepers
//   FAULT_MARK_NO_WAKE        the aborter marks and wakes nobody
//   FAULT_WAKE_BEFORE_MARK    the aborter wakes, then marks
//   FAULT_MARK_NOT_COMPARED   the mark is not in the half of the word that the futex compares
//   FAULT_SLEEP_ON_MARK       the sleeper does not look for the mark before it sleeps
//   FAULT_MARK_ONE_LINE       the aborter marks only the line of even steps
//   FAULT_MARK_LOST           publish does not look at what it has written over
#ifndef N
#define N 3
#endif

#define M 4
#define NEXT(s) ((s + 1) % M)
#define LINE(r, s) (2 * (r) + ((s) & 1))
#define STEP(w) ((w) >> 1)
#define MARK(w) ((w) & 1)
#define ARRIVED(r, s) (STEP(word[LINE(r, s)]) == s)
#define MARKED(r, s) (MARK(word[LINE(r, s)]))

byte word[2 * N];
byte sleepers[N];  // of a rank: how many sleep on its lines
byte asleep[N];    // of a rank: 1 + the line on which it sleeps in the kernel, or 0
bool will_abort;   // chosen at the start
bool recorded;     // the abort record
bool aborted;      // the aborter has done all it does

#ifdef FAULT_STORE_BUFFERED
byte buffer[N];  // a store that has not left its CPU: 1 + the word; goes to the line of its step
#endif

// FUTEX_WAIT: compares and goes to sleep as one step, as the kernel does under its lock.
inline futex_wait(l, expected) {
  atomic {
    if
#if defined(FAULT_NO_COMPARE) || defined(FAULT_ANNOUNCE_LATE)
    :: true -> asleep[me] = 1 + l;
#elif defined(FAULT_MARK_NOT_COMPARED)
    :: STEP(word[l]) == STEP(expected) -> asleep[me] = 1 + l;
    :: else
#else
    :: word[l] == expected -> asleep[me] = 1 + l;
    :: else
#endif
    fi;
  }
  asleep[me] == 0;
}

inline futex_wake(l) {
  d_step {
    w = 0;
    do
    :: w < N ->
       if
       :: asleep[w] == 1 + l ->
          asleep[w] = 0;
#ifdef FAULT_WAKE_ONE
          break;
#endif
       :: else
       fi;
       w++;
    :: else -> break;
    od;
    w = 0;
  }
}

inline wake_rank(r) {
  futex_wake(2 * (r));
  futex_wake(2 * (r) + 1);
}

// COARSE, to save states with three ranks: both lines at a time.
#ifdef COARSE
#define AT_ONCE atomic
#else
#define AT_ONCE
#endif

inline mark(r) {
#ifdef FAULT_WAKE_BEFORE_MARK
  wake_rank(r);
#endif
  AT_ONCE {
    word[2 * (r)] = word[2 * (r)] | 1;
#ifndef FAULT_MARK_ONE_LINE
    word[2 * (r) + 1] = word[2 * (r) + 1] | 1;
#endif
  };
#if !defined(FAULT_MARK_NO_WAKE) && !defined(FAULT_WAKE_BEFORE_MARK)
  AT_ONCE { wake_rank(r); }
#endif
}

inline mark_all() {
  do
  :: r < N -> mark(r); r++;
  :: r == N -> break;
  od;
  r = 0;
}

inline publish() {
#ifdef FAULT_LOOK_BEFORE_STORE
  wakes = sleepers[me] != 0;
#endif
#ifdef FAULT_STORE_BUFFERED
  atomic { buffer[me] == 0; buffer[me] = 1 + 2 * step; }
#else
  // The exchange. The look at the mark before it saves the publication and nothing else: it may find
  // the mark or come too early.
  atomic {
    if
    :: true
#ifndef FAULT_MARK_LOST
    :: MARKED(me, step) -> goto found_mark;
#endif
    fi;
    now = word[LINE(me, step)];
    word[LINE(me, step)] = 2 * step;
    assert(!aborted || MARK(now));
  }
#endif
#ifndef FAULT_MARK_LOST
  if
  :: MARK(now) -> goto found_mark;
  :: else
  fi;
#endif
#ifndef FAULT_LOOK_BEFORE_STORE
  wakes = sleepers[me] != 0;
#endif
  if
  :: wakes -> futex_wake(LINE(me, step));
  :: else
  fi;
  atomic { wakes = false; now = 0; }
}

// wait_slow and sleep_until_arrived.
inline wait_for(p) {
  do
  :: ARRIVED(p, step) -> break;
  :: else ->
#ifdef FAULT_ANNOUNCE_LATE
     now = word[LINE(p, step)];
     sleepers[p]++;
#elif defined(FAULT_NO_ANNOUNCE)
     now = word[LINE(p, step)];
#else
     sleepers[p]++;
     now = word[LINE(p, step)];
#endif
     if
#if defined(FAULT_SLEEP_ON_MARK)
     :: STEP(now) != step -> futex_wait(LINE(p, step), now);
     :: else
#elif defined(FAULT_NO_COMPARE)
     :: futex_wait(LINE(p, step), now);
#else
     :: STEP(now) != step && !MARK(now) -> futex_wait(LINE(p, step), now);
     :: else
#endif
     fi;
     atomic {
       now = 0;
#ifndef FAULT_NO_ANNOUNCE
       sleepers[p]--;
#endif
     }
     if
     :: ARRIVED(p, step) -> break;
     :: else
     fi;
     if
     :: MARKED(p, step) || recorded -> goto found_mark;
     :: else
     fi;
  od;
}

proctype rank(byte me) {
  byte step, now, i, w;
  bool wakes;
  do
  :: will_abort -> break;  // stays away
  :: step = NEXT(step);
     publish();
     i = 1;
     do
     :: i < N -> wait_for((me + i) % N); i++;
     :: i == N -> break;
     od;
     i = 0;
  od;
  goto away;
found_mark:
  assert(recorded);
  // The library marks the lines of all ranks here. For waking it is enough to give back the marks that
  // an own exchange has taken (further marks and wake-ups keep nobody asleep), line by line or at once;
  // abort.pml has the rest.
  atomic { mark(me); }
away:
  skip;
}

// abort() from a thread of its own.
proctype aborter() {
  byte r, w;
  recorded = true;
  mark_all();
  aborted = true;
}

#ifdef FAULT_STORE_BUFFERED
proctype drain(byte me) {
end:
  do
  :: atomic {
       buffer[me] != 0 -> word[LINE(me, STEP(buffer[me] - 1))] = buffer[me] - 1; buffer[me] = 0;
     }
  od;
}
#endif

init {
  byte n;
  atomic {
    for (n : 0 .. N - 1) {
      run rank(n);
#ifdef FAULT_STORE_BUFFERED
      run drain(n);
#endif
    }
#ifndef NO_ABORT
    if
    :: true
    :: true -> will_abort = true; run aborter();
    fi;
#endif
  }
}
