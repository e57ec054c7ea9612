// SPDX-License-Identifier: Apache-2.0
// Steps, flag lines and halves (include/rankfold/context.hpp): N ranks carry out the same calls, in any
// mix and for ever: one-shot, two-shot of one and of two chunks, broadcast from any root (scatter, too),
// gather to any root (reduce, too), two-shot to any root.
//
// Checked: whatever a rank reads of a peer (line, staged data, reduced slice) is of the step it wants,
// never older and never written over; ranks are never more than one step apart; nobody gets stuck.
//
// Data are represented by the step that wrote them. Steps count modulo 4, so that runs have no end:
// since ranks are one step apart at most (asserted), what can meet differs by less. Waiting is plain
// blocking here: see sleep.pml.
//
// Faults, each of which the checker must find:
//   FAULT_NO_CATCH_UP          next_step does not wait for what a broadcast left undone
//   FAULT_CATCH_UP_SHORT       catch_up sees the peers one step too early
//   FAULT_CATCH_UP_MISSES_ONE  catch_up leaves out one peer
//   FAULT_PUBLISH_BEFORE_DATA  the flag goes out before the data
//   FAULT_WORD_BEFORE_PRINT    the word of a line is written before its fingerprint and payload
//   FAULT_PUBLISH_BEFORE_READ  a rank publishes step s + 1 before it has read what it needs of step s
//   FAULT_ONE_HALF             one half instead of two
//   FAULT_ONE_LINE             one flag line instead of two
//   FAULT_NEXT_HALF_EARLY      two-shot writes next_half before wait_all
//   FAULT_NEXT_HALF_IS_HALF    two-shot puts its slice into the half of this step
//   FAULT_SLICE_OVER_STAGED    two-shot's slice lies where the next chunk is staged
//   FAULT_WAIT_MISSES_ONE      wait_all leaves out one peer
//   FAULT_ROOT_DOES_NOT_WAIT   the root of a gather reads before all have come
#ifndef N
#define N 3
#endif

#define M 4
#define NONE M
#define PREV(s) ((s + M - 1) % M)
#define NEXT(s) ((s + 1) % M)

#ifdef FAULT_ONE_LINE
#define LINE(r, s) (r)
#else
#define LINE(r, s) (2 * (r) + ((s) & 1))
#endif
#ifdef FAULT_ONE_HALF
#define HALF(r, s) (r)
#else
#define HALF(r, s) (2 * (r) + ((s) & 1))
#endif

#define ONE_SHOT 0
#define TWO_SHOT 1 /* 1: one chunk, 2: two */
#define BROADCAST 3 /* + root */
#define GATHER (BROADCAST + N)
#define TWO_SHOT_TO (GATHER + N)

byte word[2 * N];    // of a line: the step
byte print[2 * N];   // of a line: the step whose fingerprint and payload it holds
byte staged[2 * N];  // of a half: the step whose data it holds
byte slice[2 * N];   // of a half: the step for which its reduced slice is

byte last[N];  // for the assertion below: the step that a rank has published
#define APART(a, b) (last[a] == last[b] || last[a] == NEXT(last[b]) || last[b] == NEXT(last[a]))

byte calls[M];  // what the call is that follows a step
byte begun[M];  // how many ranks have begun it

// check() in context.hpp
inline check(whose, when) {
  assert(print[LINE(whose, when)] == when);
  seen[whose] = when;
}

inline next_step(keep_slice) {
  step = NEXT(step);
#ifdef FAULT_CATCH_UP_SHORT
  if
  :: all_seen != PREV(step) && all_seen != PREV(PREV(step)) -> catch_up(PREV(PREV(step)));
  :: else
  fi;
#elif !defined(FAULT_NO_CATCH_UP)
  if
  :: all_seen != PREV(step) -> catch_up(PREV(step));
  :: else
  fi;
#endif
  // From here on the half and the line may be written: say that what they held is gone.
  atomic {
    staged[HALF(me, step)] = NONE;
    print[LINE(me, step)] = NONE;
    if
    :: !(keep_slice) -> slice[HALF(me, step)] = NONE;
    :: else
    fi;
  }
}

#ifdef FAULT_CATCH_UP_MISSES_ONE
#define CATCH_UP_UNTIL (N - 1)
#else
#define CATCH_UP_UNTIL N
#endif

inline catch_up(before) {
  do
  :: p < CATCH_UP_UNTIL && (p == me || seen[p] == before) -> p++;
  :: atomic {
       p < CATCH_UP_UNTIL && p != me && seen[p] != before && word[LINE(p, before)] == before ->
         check(p, before);
         p++;
     }
  :: p == CATCH_UP_UNTIL -> break;
  od;
  atomic { all_seen = before; p = 0; }
}

inline publish() {
#ifndef FAULT_WORD_BEFORE_PRINT
  print[LINE(me, step)] = step;
#endif
  d_step {
    word[LINE(me, step)] = step;
    last[me] = step;
    do
    :: p < N -> assert(APART(me, p)); p++;
    :: else -> break;
    od;
    p = 0;
  }
#ifdef FAULT_WORD_BEFORE_PRINT
  print[LINE(me, step)] = step;
#endif
}

inline stage_and_publish() {
#ifdef FAULT_PUBLISH_BEFORE_DATA
  publish();
  staged[HALF(me, step)] = step;
#else
  staged[HALF(me, step)] = step;
  publish();
#endif
}

#ifdef FAULT_WAIT_MISSES_ONE
#define WAIT_UNTIL (N - 1)
#else
#define WAIT_UNTIL N
#endif

inline wait_all() {
  i = 1;
  do
  :: i == WAIT_UNTIL -> break;
  :: atomic {
       i < WAIT_UNTIL && word[LINE((me + i) % N, step)] == step -> check((me + i) % N, step); i++;
     }
  od;
  atomic { all_seen = step; i = 0; p = 0; }
}

// Reads what every peer wrote for step `when`, in a half and in its line. All at once, at any time
// before the next publish: whoever writes too early is caught as well as by reading one by one.
#define READ_ALL(array, when)                                                         \
  d_step {                                                                            \
    do                                                                                \
    :: p < N ->                                                                       \
       assert(p == me || (array[HALF(p, when)] == when && print[LINE(p, when)] == when)); \
       p++;                                                                           \
    :: else -> break;                                                                 \
    od;                                                                               \
    p = 0;                                                                            \
  }

inline one_shot() {
#ifdef FAULT_PUBLISH_BEFORE_READ
  next_step(false);
  stage_and_publish();
  if
  :: unread != NONE -> READ_ALL(staged, unread);
  :: else
  fi;
  wait_all();
  unread = step;
#else
  next_step(false);
  stage_and_publish();
  wait_all();
  READ_ALL(staged, step);
#endif
}

// To every rank, or to `root` only.
#define GETS(root) (root == NONE || root == me)

inline two_shot(chunks, root) {
  do
  :: c <= chunks ->
     next_step(c > 0);
     if
     :: c < chunks ->
        staged[HALF(me, step)] = step;
#ifdef FAULT_SLICE_OVER_STAGED
        slice[HALF(me, step)] = NONE;
#endif
     :: else
     fi;
     publish();
     if
     :: c == chunks && !(GETS(root)) -> break;  // nothing to read: the next call waits
     :: else
     fi;
#ifdef FAULT_NEXT_HALF_EARLY
     if
     :: c < chunks -> slice[HALF(me, NEXT(step))] = NEXT(step);
     :: else
     fi;
#endif
     wait_all();
     if
     :: c < chunks ->
        READ_ALL(staged, step);
#ifdef FAULT_NEXT_HALF_IS_HALF
        slice[HALF(me, step)] = NEXT(step);
#else
        slice[HALF(me, NEXT(step))] = NEXT(step);
#endif
     :: else
     fi;
     if
     :: c > 0 && (GETS(root)) -> READ_ALL(slice, step);
     :: else
     fi;
     c++;
  :: c > chunks -> break;
  od;
  c = 0;
}

inline broadcast(root) {
  next_step(false);
  if
  :: me == root -> stage_and_publish();
  :: else ->
     publish();
     atomic { word[LINE(root, step)] == step -> check(root, step); }
     assert(staged[HALF(root, step)] == step && print[LINE(root, step)] == step);
  fi;
}

inline gather(root) {
  next_step(false);
  stage_and_publish();
  if
  :: me == root ->
#ifndef FAULT_ROOT_DOES_NOT_WAIT
     wait_all();
#endif
     READ_ALL(staged, step);
  :: else
  fi;
}

proctype rank(byte me) {
  byte step, all_seen, what, p, i, c;
  byte seen[N];
#ifdef FAULT_PUBLISH_BEFORE_READ
  byte unread = NONE;
#endif
  do
  :: atomic {
       // Whoever comes first to a call decides what it is; the others make the same.
       if
       :: begun[step] == 0 -> select(what : 0 .. TWO_SHOT_TO + N - 1); calls[step] = what;
       :: else -> what = calls[step];
       fi;
       begun[step]++;
       if
       :: begun[step] == N -> begun[step] = 0; calls[step] = 0;
       :: else
       fi;
     }
     if
     :: what == ONE_SHOT -> one_shot();
     :: what == TWO_SHOT || what == TWO_SHOT + 1 -> two_shot(what, NONE);
     :: what >= BROADCAST && what < GATHER -> broadcast(what - BROADCAST);
     :: what >= GATHER && what < TWO_SHOT_TO -> gather(what - GATHER);
     :: what >= TWO_SHOT_TO -> two_shot(1, what - TWO_SHOT_TO);
     fi;
  od;
}

init {
  byte r;
  atomic {
    for (r : 0 .. 2 * N - 1) {
      print[r] = NONE;
      staged[r] = NONE;
      slice[r] = NONE;
    }
    for (r : 0 .. N - 1) {
      run rank(r);
    }
  }
}
