// SPDX-License-Identifier: Apache-2.0
// Failing (include/rankfold/context.hpp: record, mark, found_mark, check_alive): N ranks make K calls of
// one step, each a broadcast or one that waits for all. EVENTS times something goes wrong: a rank throws
// in a call (before it has published, after, or when all have arrived), dies at any moment, leaves early,
// or a thread aborts at any moment.
//
// Checked:
// - nobody hangs: every rank that lives completes its calls or throws;
// - one cause: all who throw give the cause that the first failing rank recorded, or, if it died while
//   it wrote the record, say that they do not know;
// - after a call has thrown on any rank, or an abort() has returned, no call that begins succeeds;
// - nobody throws if nothing went wrong (leaving after the last call is no failure);
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
#define GONE(r) (dead[r] || gone[r])

byte word[2 * N];
byte roots[K + 1];  // of a call: its root, or NOBODY: all wait for all

byte state;  // of the record: 0 free, 1 being written, 2 complete
byte cause;  // 1 + rank, or 1 + N + rank for its abort()

bool dead[N];
bool gone[N];  // left, in order
bool may_throw[N];
bool may_leave[N];
bool may_die[N];

// For the assertions.
byte first;     // whoever claimed the record
bool happened;  // something went wrong
bool over;      // a call has thrown, or an abort() has returned
#define WRITER_DEAD (first != 0 && dead[(first - 1) % N])

// What others can see of a rank is what it writes: it dies before a write or after all of them. All
// threads of a process die together.
#define UNLESS_DEAD               \
  if                              \
  :: !dead[me]                    \
  :: dead[me] -> goto dies        \
  :: !dead[me] && may_die[me] ->  \
     dead[me] = true;             \
     happened = true;             \
     goto dies                    \
  fi

// Marks every line. One that is marked is passed over at once: to mark it again changes nothing.
// COARSE, to save states where many ranks fail: both lines of a rank are marked at a time, and who finds
// a mark marks them all at once; what goes wrong first does so on rank 0; who has thrown does not leave.
#ifdef COARSE
#define LINES 2
#else
#define LINES 1
#endif

inline mark_all() {
#ifdef FAULT_NO_MARK
  skip;
#else
  do
  :: atomic {
       m < 2 * N -> UNLESS_DEAD;
#ifdef FAULT_MARK_ONE_LINE
       if
       :: (m & 1) == 0 -> word[m] = word[m] | 1;
       :: else
       fi;
       m++;
#else
#ifdef FAULT_MARK_BY_STORE
       old = word[m];
     }
     atomic {
       assert(STEP(word[m]) == STEP(old));
       word[m] = old | 1;
       old = 0;
#else
       word[m] = word[m] | 1;
       word[m + LINES - 1] = word[m + LINES - 1] | 1;
#endif
       m = m + LINES;
       do
       :: m < 2 * N && MARK(word[m]) && MARK(word[m + LINES - 1]) -> m = m + LINES;
       :: else -> break;
       od;
#endif
     }
  :: atomic { m == 2 * N -> m = 0; break; }
  od;
#endif
}

// record(), by a rank or by its abort(); `mine` is then the cause if this one was first, else 0.
#ifdef FAULT_RECORD_BY_STORE
#define FREE (mine != 0)
#else
#define FREE (state == 0)
#endif

inline record(who) {
#ifdef FAULT_MARK_BEFORE_RECORD
  mark_all();
#endif
#ifdef FAULT_RECORD_BY_STORE
  mine = (state == 0 -> who : 0);
#endif
  atomic {
    UNLESS_DEAD;
    if
    :: FREE ->
       assert(first == 0 && happened);
       state = 1;
       first = who;
       mine = who;
    :: else -> mine = 0;
    fi;
  }
  if
  :: mine != 0 ->
     atomic { UNLESS_DEAD; cause = mine; }
     atomic { UNLESS_DEAD; state = 2; }
  :: else
  fi;
}

// check_alive reads the flag, whether its owner is gone, and the flag again. Once a rank is gone its
// flag stays as it is, so the last two are one step here.
#define LOST(q) (q != me && GONE(q) && !ARRIVED(q, at))
#if N == 2
#define ANY_LOST (LOST(0) || LOST(1))
#else
#define ANY_LOST (LOST(0) || LOST(1) || LOST(2))
#endif

#define EVERYONE (i < N)
#define AWAITED (i < N -> (me + i) % N : roots[step])

proctype rank(byte me) {
  byte step;       // the step of this call
  byte at;         // the step it waits for
  byte i;          // the i-th rank after this one is next; N: waits for the root only
  byte seen;       // the step at which it has seen all
  byte mine, m;
  bool late;       // something had failed before this call began
#ifdef FAULT_MARK_BY_STORE
  byte old;
#endif
#ifdef FAULT_NO_LOOK_AGAIN
  byte suspect = NOBODY;
#endif

begins:
  atomic {
    if
    :: step == K -> goto leaves;
    :: step < K && may_leave[me] -> happened = true; goto leaves;
    :: step < K -> step++; late = over;
    fi;
    // next_step: sees what a broadcast has left undone.
    if
    :: seen + 1 < step -> at = step - 1; i = 1; goto waits;
    :: else
    fi;
  }

publishes:
  atomic {
    if
    :: may_throw[me] -> goto fails;
    :: true
    fi;
    UNLESS_DEAD;
    // Finds the mark before the exchange, or, if that look came too early, in what it takes.
    if
    :: true
#ifndef FAULT_MARK_LOST
    :: MARKED(me, step) -> goto found_mark;
#endif
    fi;
    m = MARKED(me, step);
    word[LINE(me, step)] = 2 * step;
#ifdef FAULT_MARK_LOST
    m = 0;
#endif
    if
    :: m != 0 -> goto found_mark;
    :: m == 0 && may_throw[me] -> goto fails;
    :: m == 0
    fi;
    at = step;
    i = (roots[step] == NOBODY -> 1 : N);
    if
    :: roots[step] == me -> goto completes;
    :: else
    fi;
  }

waits:
  do
  :: atomic {
       ARRIVED(AWAITED, at) ->
#ifdef FAULT_NO_LOOK_AGAIN
       suspect = NOBODY;
#endif
       if
       :: i + 1 < N -> i++;
       :: i + 1 == N -> seen = at; break;
       :: i == N -> break;
       fi;
     }
  :: !ARRIVED(AWAITED, at) && (MARKED(AWAITED, at) || state != 0) -> goto found_mark;
  :: dead[me] -> goto dies;
#if defined(FAULT_NO_LOOK_AGAIN)
  :: atomic { suspect == NOBODY && !ARRIVED(AWAITED, at) -> suspect = AWAITED; }
  :: suspect != NOBODY && GONE(suspect) -> goto fails;
#elif !defined(FAULT_NO_LIVENESS)
  :: (EVERYONE -> ANY_LOST : LOST(roots[step])) -> goto fails;
#endif
  od;
  if
  :: at != step -> goto publishes;
  :: at == step && may_throw[me] -> goto fails;
  :: at == step
  fi;

completes:
  atomic { assert(!late); i = 0; at = 0; goto begins; }

fails:
  atomic {
    i = 0; at = 0; seen = 0; late = false;
    happened = happened || may_throw[me];
  }
  record(me + 1);
  if
  :: mine != 0 -> mark_all(); goto throws;
  :: else
  fi;

found_mark:
  atomic { assert(state != 0); i = 0; at = 0; seen = 0; late = false; m = 0; }
#ifdef FAULT_MARK_OWN_ONLY
  d_step {
    word[LINE(me, 0)] = word[LINE(me, 0)] | 1;
    word[LINE(me, 1)] = word[LINE(me, 1)] | 1;
  }
#elif defined(COARSE)
  atomic {
    UNLESS_DEAD;
    do
    :: m < 2 * N -> word[m] = word[m] | 1; m++;
    :: else -> break;
    od;
    m = 0;
  }
#else
  mark_all();
#endif
  atomic {
    if
#ifdef FAULT_READ_EARLY
    :: state != 0 -> mine = cause;
#else
    :: state == 2 -> mine = cause;
#endif
#ifndef FAULT_WAIT_FOR_EVER
    :: state == 1 && WRITER_DEAD -> mine = UNKNOWN;
#endif
    :: dead[me] -> goto dies;
    fi;
    goto throws;
  }

throws:
  atomic {
    UNLESS_DEAD;
    assert(mine == first || mine == UNKNOWN && WRITER_DEAD);
    over = true;
#ifdef COARSE
    goto dies;
#endif
  }

leaves:
  atomic { UNLESS_DEAD; gone[me] = true; }

dies:
  atomic { step = 0; at = 0; i = 0; seen = 0; mine = 0; m = 0; late = false; }
}

// abort() of rank `me`, from a thread of its own.
proctype aborter(byte me) {
  byte mine, m;
#ifdef FAULT_MARK_BY_STORE
  byte old;
#endif
  happened = true;
  record(1 + N + me);
  mark_all();
  atomic { UNLESS_DEAD; over = true; }
dies:
  atomic { mine = 0; m = 0; }
}

init {
  byte n, r;
  atomic {
    for (n : 1 .. K) {
      select(r : 0 .. N);
      roots[n] = r;
    }
    // Rank r / 4 does r % 4.
    r = 0;
#if EVENTS > 0
    for (n : 1 .. EVENTS) {
      do
#ifdef COARSE
      :: (n == 1 && r < 3) || (n > 1 && r < 4 * N - 1) -> r++;
#else
      :: r < 4 * N - 1 -> r++;
#endif
      :: true -> break;
      od;
      if
      :: r % 4 == 0 -> may_throw[r / 4] = true;
      :: r % 4 == 1 -> may_leave[r / 4] = true;
      :: r % 4 == 2 -> may_die[r / 4] = true;
      :: r % 4 == 3 -> run aborter(r / 4);
      fi;
    }
#endif
    r = 0;
    for (n : 0 .. N - 1) {
      run rank(n);
    }
    n = 0;
  }
}
