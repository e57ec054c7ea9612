// SPDX-License-Identifier: Apache-2.0
// Failing (include/rankfold/context.hpp: record, mark, found_mark, check_alive): N ranks make K calls of
// one step, each a broadcast or one that waits for all. EVENTS times something goes wrong, at any moment:
// a rank throws in a call (before or after it has published), dies, leaves early, or a thread aborts.
//
// Checked:
// - nobody hangs: every rank that lives completes its calls or throws;
// - one cause: all who throw give the cause that the first failing rank recorded, or, if it died while
//   it wrote the record, say that they do not know;
// - after a call has thrown on any rank, or an abort() has returned, no call that begins succeeds;
// - nobody throws if nothing went wrong (leaving after the last call is no failure), and whoever is said
//   to be lost had not published the step it is missed at;
// - a mark is never there without a record, and marking never undoes a publication.
//
// Waiting is plain blocking (sleep.pml has the sleeping). Slices are there: a waiting rank learns that
// another is gone. Deadlines are not: nothing here rests on them. found_mark waits a second for a record
// that is being written; a rank that lives writes it in that time.
//
// Faults, each of which the checker must find:
//   FAULT_MARK_LOST           publish does not look at what it has written over
//   FAULT_MARK_OWN_ONLY       who finds a mark marks only its own lines before it throws
//   FAULT_MARK_ONE_LINE       marking leaves out the line of odd steps
//   FAULT_MARK_BY_STORE       marking reads and writes in two steps
//   FAULT_MARK_BEFORE_RECORD  marks first, records then
//   FAULT_RECORD_BY_STORE     the record is claimed in two steps
//   FAULT_READ_EARLY          the record is read while it is being written
//   FAULT_WAIT_FOR_EVER       no bound on the wait for a record that is being written
//   FAULT_NO_LIVENESS         nobody looks whether a peer is gone
//   FAULT_NO_LOOK_AGAIN       a peer that is gone is not looked at again
//   FAULT_NO_MARK             who fails records, and marks nothing
#ifndef N
#define N 3
#endif
#ifndef K
#define K 2
#endif
#ifndef EVENTS
#define EVENTS 1
#endif

#define NOBODY N
#define UNKNOWN 255
#define LINE(r, s) (2 * (r) + ((s) & 1))
#define STEP(w) ((w) >> 1)
#define MARK(w) ((w) & 1)
#define ARRIVED(r, s) (STEP(word[LINE(r, s)]) == (s))
#define MARKED(r, s) (MARK(word[LINE(r, s)]))
#define GONE(r) (dead[r] || left[r])

byte word[2 * N];
byte roots[K + 1];  // of a call: its root, or NOBODY: all wait for all

byte state;  // of the record: 0 free, 1 being written, 2 complete
byte cause;  // 1 + rank, or 1 + N + rank for its abort()

bool dead[N];
bool left[N];
bool may_throw[N];
bool may_leave[N];

// For the assertions.
byte first;     // whoever claimed the record
bool happened;  // something went wrong
bool over;      // a call has thrown, or an abort() has returned

inline mark_line(l) {
#ifdef FAULT_MARK_BY_STORE
  old = word[l];
  atomic {
    assert(STEP(word[l]) == STEP(old));
    word[l] = old | 1;
    old = 0;
  }
#else
  word[l] = word[l] | 1;
#endif
}

inline mark_all() {
#ifndef FAULT_NO_MARK
  do
  :: m < 2 * N ->
#ifdef FAULT_MARK_ONE_LINE
     if
     :: (m & 1) == 0 -> mark_line(m);
     :: else
     fi;
#else
     mark_line(m);
#endif
     m++;
  :: m == 2 * N -> break;
  od;
  m = 0;
#endif
}

// record(), by a rank or by its abort(); `mine` is then the cause if this one was first.
inline record(who) {
#ifdef FAULT_MARK_BEFORE_RECORD
  mark_all();
#endif
#ifdef FAULT_RECORD_BY_STORE
  mine = (state == 0 -> who : 0);
#endif
  atomic {
#ifdef FAULT_RECORD_BY_STORE
    if
    :: mine != 0 ->
#else
    if
    :: state == 0 ->
#endif
       state = 1;
       assert(first == 0 && happened);
       first = who;
       mine = who;
    :: else -> mine = 0;
    fi;
  }
  if
  :: mine != 0 ->
     cause = mine;
     state = 2;
  :: else
  fi;
}

inline fail() {
  record(me + 1);
  if
  :: mine != 0 ->
     mark_all();
     goto throws;
  :: else -> goto found_mark;
  fi;
}

inline publish() {
  // The exchange.
  atomic {
    taken = MARKED(me, step);
    word[LINE(me, step)] = 2 * step;
  }
#ifndef FAULT_MARK_LOST
  if
  :: taken -> goto found_mark;
  :: else
  fi;
#endif
}

// Waits for p at step s. `everyone`: all peers are needed, so any of them may be missed.
inline wait_for(p, s, everyone) {
  suspect = NOBODY;
  do
  :: ARRIVED(p, s) -> break;
  :: !ARRIVED(p, s) && (MARKED(p, s) || state != 0) -> goto found_mark;
#ifndef FAULT_NO_LIVENESS
     // check_alive: reads the flag; then whether its owner is gone; then the flag again.
  :: atomic {
       suspect == NOBODY && !ARRIVED(p, s) ->
         if
         :: everyone ->
            select(q : 0 .. N - 1);
            if
            :: q != me && !ARRIVED(q, s) -> suspect = q;
            :: else
            fi;
         :: else -> suspect = p;
         fi;
         q = 0;
     }
  :: atomic {
       suspect != NOBODY && GONE(suspect) ->
#ifndef FAULT_NO_LOOK_AGAIN
         if
         :: ARRIVED(suspect, s) -> suspect = NOBODY;
         :: else
         fi;
#endif
         if
         :: suspect != NOBODY ->
            assert(!ARRIVED(suspect, s));
            goto fails;
         :: else
         fi;
     }
     // Another one is gone than the one that was looked at in this slice: looks at that in the next.
  :: atomic {
       suspect != NOBODY && !GONE(suspect) && everyone ->
         q = 0;
         do
         :: q < N && q != me && GONE(q) && !ARRIVED(q, s) -> suspect = q; break;
         :: q < N -> q++;
         :: q == N -> break;
         od;
         q = 0;
     }
#endif
  od;
  suspect = NOBODY;
}

proctype rank(byte me) {
  byte step, seen, mine, i, m, q, suspect;
#ifdef FAULT_MARK_BY_STORE
  byte old;
#endif
  bool taken, late;
  {
    do
    :: step == K -> goto leaves;
    :: step < K ->
       if
       :: may_leave[me] -> happened = true; goto leaves;
       :: true
       fi;
       atomic { step++; late = over; }
       // next_step: sees what a broadcast has left undone.
       if
       :: seen + 1 < step ->
          do
          :: i < N && i != me -> wait_for(i, step - 1, true); i++;
          :: i == me -> i++;
          :: i == N -> break;
          od;
          atomic { i = 0; seen = step - 1; }
       :: else
       fi;
       if
       :: may_throw[me] -> happened = true; goto fails;
       :: true
       fi;
       publish();
       if
       :: may_throw[me] -> happened = true; goto fails;
       :: true
       fi;
       if
       :: roots[step] == NOBODY ->
          i = 1;
          do
          :: i < N -> wait_for((me + i) % N, step, true); i++;
          :: i == N -> break;
          od;
          atomic { i = 0; seen = step; }
       :: roots[step] != NOBODY && roots[step] != me -> wait_for(roots[step], step, false);
       :: roots[step] == me
       fi;
       assert(!late);  // succeeds
    od;

  fails:
    fail();

  found_mark:
    assert(state != 0);
#ifdef FAULT_MARK_OWN_ONLY
    mark_line(LINE(me, 0));
    mark_line(LINE(me, 1));
#else
    mark_all();
#endif
    if
#ifdef FAULT_READ_EARLY
    :: state != 0 -> mine = cause;
#else
    :: state == 2 -> mine = cause;
#endif
#ifndef FAULT_WAIT_FOR_EVER
    :: state == 1 && dead[(first - 1) % N] -> mine = UNKNOWN;
#endif
    fi;

  throws:
    assert(mine == first || mine == UNKNOWN && dead[(first - 1) % N]);
    over = true;

  leaves:
    left[me] = true;
  } unless { dead[me] }
}

// abort() of rank `me`, from a thread of its own.
proctype aborter(byte me) {
  byte mine, m;
#ifdef FAULT_MARK_BY_STORE
  byte old;
#endif
  {
    happened = true;
    record(1 + N + me);
    mark_all();
    over = true;
  } unless { dead[me] }
}

proctype killer(byte me) {
  atomic {
    dead[me] = true;
    happened = true;
  }
}

init {
  byte n, r;
  atomic {
    for (n : 1 .. K) {
      select(r : 0 .. N);
      roots[n] = r;
    }
    for (n : 1 .. EVENTS) {
      select(r : 0 .. N - 1);
      if
      :: may_throw[r] = true;
      :: may_leave[r] = true;
      :: run aborter(r);
      :: run killer(r);
      fi;
    }
    r = 0;
    for (n : 0 .. N - 1) {
      run rank(n);
    }
    n = 0;
  }
}
