// SPDX-License-Identifier: Apache-2.0
// Steps, flag lines and halves (include/rankfold/context.hpp): N ranks carry out the same calls, in any
// mix and for ever: one-shot, two-shot of one and of two chunks, broadcast from any root (scatter, too),
// gather to any root (reduce, too), two-shot to any root; with data in the whole half, in a slot of it,
// or in the line alone; and one-shot and two-shot of inputs that lie where all ranks read them, in
// memory that its owner writes over as soon as its call has returned.
//
// Checked: whatever a rank reads of a peer (line, staged data, reduced slice) is of the step it wants,
// never older and never written over; each compares each call of each peer; ranks are never more than
// LEAD steps apart; nobody gets stuck.
//
// There are 2 · LEAD lines and as many slots. Data are represented by the step that wrote them. Steps
// count modulo 4 · LEAD, so that runs have no end: since ranks are LEAD steps apart at most (asserted),
// what can meet differs by less. Waiting is plain blocking here: see sleep.pml.
//
// To save states: SMALL, only what one root sends or all send to all, in one step; NO_PLACES, ONLY_PLACES:
// none or only calls of inputs that are read where they lie; FIRST_USE, LAST_USE,
// only steps that use the line (0), a slot (1) or the whole half (2).
//
// Faults, each of which the checker must find:
//   FAULT_NO_CATCH_UP          next_step does not wait for what a broadcast left undone
//   FAULT_CATCH_UP_SHORT       before a step that uses the half, catch_up sees the peers one step too early
//   FAULT_LEAD_TOO_LONG        a step that uses no half is LEAD + 1 steps ahead of what has been seen
//   FAULT_SKIPS                who waits for a root compares only the step that it waits for
//   FAULT_CATCH_UP_MISSES_ONE  catch_up leaves out one peer
//   FAULT_PUBLISH_BEFORE_DATA  the flag goes out before the data
//   FAULT_WORD_BEFORE_PRINT    the word of a line is written before its fingerprint and payload
//   FAULT_PUBLISH_BEFORE_READ  a rank publishes step s + 1 before it has read what it needs of step s
//   FAULT_ONE_HALF             one half instead of two
//   FAULT_HALF_THE_LINES       LEAD flag lines instead of twice as many
//   FAULT_HALF_THE_SLOTS       the slots of one half serve all steps
//   FAULT_SLOT_OVER_HALF       a slot is written while what lay in the whole half is read
//   FAULT_HALF_OVER_SLOT       the whole half is written while slots in it are read
//   FAULT_NEXT_HALF_EARLY      two-shot writes next_half before wait_all
//   FAULT_NEXT_HALF_IS_HALF    two-shot puts its slice into the half of this step
//   FAULT_SLICE_OVER_STAGED    two-shot's slice lies where the next chunk is staged
//   FAULT_WAIT_MISSES_ONE      wait_all leaves out one peer
//   FAULT_NO_CLOSING_STEP      a call returns that has read its peers' inputs where they lie
//   FAULT_RETURN_EARLY         two-shot of such inputs returns before the last wait_all
//   FAULT_ROOT_DOES_NOT_WAIT   the root of a gather reads before all have come
#ifndef N
#define N 3
#endif

#ifndef LEAD
#define LEAD 2
#endif
#define LINES (2 * LEAD)
#define M (2 * LINES)
#define NONE M
#define PREV(s) BEFORE(s, 1)
#define NEXT(s) ((s + 1) % M)
#define BEFORE(s, n) ((s + M - (n)) % M)
#define SINCE(then, now) ((now + M - (then)) % M)

#ifdef FAULT_HALF_THE_LINES
#define LINE(r, s) (LINES * (r) + (s) % LEAD)
#else
#define LINE(r, s) (LINES * (r) + (s) % LINES)
#endif
#ifdef FAULT_ONE_HALF
#define HALF(r, s) (2 * (r))
#else
#define HALF(r, s) (2 * (r) + ((s) & 1))
#endif
#ifdef FAULT_HALF_THE_SLOTS
#define SLOT(r, s) (LEAD * 2 * (r) + (s) % LEAD)
#else
#define SLOT(r, s) (LEAD * HALF(r, s) + (s) / 2 % LEAD)
#endif

// What a step uses: its line only, a slot of the half, the whole half.
#define IN_LINE 0
#define IN_SLOT 1
#define IN_HALF 2
#ifndef FIRST_USE
#define FIRST_USE IN_LINE
#endif
#ifndef LAST_USE
#define LAST_USE IN_HALF
#endif

#define ONE_SHOT 0
#define TWO_SHOT 1 /* 1: one chunk, 2: two */
#define BROADCAST 3 /* + root */
#define GATHER (BROADCAST + N)
#define TWO_SHOT_TO (GATHER + N)
#define OF_PLACES (TWO_SHOT_TO + N) /* + chunks */
#ifdef SMALL
#define NO_PLACES
#define KINDS GATHER
#else
#ifdef NO_PLACES
#define KINDS OF_PLACES
#else
#define KINDS (OF_PLACES + 3)
#endif
#endif

byte word[LINES * N];       // of a line: the step
byte print[LINES * N];      // of a line: the step whose fingerprint and payload it holds
byte staged[2 * LEAD * N];  // of a slot: the step whose data it holds, in the slot or in the whole half
byte slice[2 * N];          // of a half: the step for which its reduced slice is

byte input[N];              // of a rank: the step from which on its peers may read its input
bool lies[N];               // whether it lies where they do: told in the line of that step

byte last[N];  // for the assertion below: the step that a rank has published
#define APART(a, b) (SINCE(last[a], last[b]) <= LEAD || SINCE(last[b], last[a]) <= LEAD)

#define BEYOND(r, s) (SINCE(s, last[r]) >= 1 && SINCE(s, last[r]) <= LINES)
#if N == 2
#define ALL_BEYOND(s) (BEYOND(0, s) && BEYOND(1, s))
#else
#define ALL_BEYOND(s) (BEYOND(0, s) && BEYOND(1, s) && BEYOND(2, s))
#endif

byte calls[M];  // what the call is that follows a step
byte uses[M];   // and what it uses
byte begun[M];  // how many ranks have begun it

// check() in context.hpp
inline check(whose, when) {
  assert(NEXT(seen[whose]) == when);
  assert(print[LINE(whose, when)] == when);
  seen[whose] = when;
}

// see() in context.hpp
inline see(whose, when) {
  do
  :: seen[whose] == when -> break;
#ifdef FAULT_SKIPS
  :: atomic { seen[whose] != when && word[LINE(whose, when)] == when -> check(whose, when); }
#else
  :: atomic {
       seen[whose] != when && word[LINE(whose, NEXT(seen[whose]))] == NEXT(seen[whose]) ->
         check(whose, NEXT(seen[whose]));
     }
#endif
  od;
}

// Says of the steps up to which all must have been seen how far it lies back; lay_out() in context.hpp.
// `idle` and `unread` count the steps since the half was last used, and since a slot came after a whole
// half; what is longer ago than LEAD steps makes no difference.
#define COUNTED(steps) (steps > LEAD -> LEAD + 1 : steps + 1)
inline lay_out(use) {
  idle = COUNTED(idle);
  unread = COUNTED(unread);
  unread = (use == IN_SLOT && whole -> (idle > 0 -> idle - 1 : 0) : unread);
  whole = (use == IN_LINE -> whole : use == IN_HALF);
  idle = (use == IN_LINE -> idle : 0);
  back = LEAD;
#ifndef FAULT_HALF_OVER_SLOT
  back = (use == IN_HALF -> 1 : back);
#endif
#ifndef FAULT_SLOT_OVER_HALF
  back = (use == IN_SLOT && unread < LEAD -> (unread < 1 -> 1 : unread) : back);
#endif
#ifdef FAULT_CATCH_UP_SHORT
  back = (use == IN_LINE -> back : back + 1);
#endif
#ifdef FAULT_LEAD_TOO_LONG
  back = (use == IN_LINE -> back + 1 : back);
#endif
}

// What a rank's half holds in a step, all of it or a slot.
#define SET_HALF(what)                                                         \
  do                                                                           \
  :: p < LEAD -> staged[LEAD * HALF(me, step) + p] = what; p++;                \
  :: else -> p = 0; break;                                                     \
  od
#define IN_PLACE(r, use)                                                       \
  (use == IN_LINE || (use == IN_SLOT && staged[SLOT(r, step)] == step) ||      \
   (use == IN_HALF && staged[LEAD * HALF(r, step)] == step &&                  \
    staged[LEAD * HALF(r, step) + LEAD - 1] == step))

inline next_step(use, keep_slice) {
  atomic {
    step = NEXT(step);
    lay_out(use);
    // Has it been seen that far? Else catch_up goes there at least.
    if
    :: SINCE(all_seen, step) <= back -> back = 0;
    :: else ->
       do
       :: back > 1 -> back--;
       :: break;
       od;
    fi;
  }
#ifndef FAULT_NO_CATCH_UP
  if
  :: back != 0 -> catch_up(BEFORE(step, back));
  :: else
  fi;
#endif
  // From here on the line and what is used of the half may be written: say that what they held is gone.
  atomic {
    back = 0;
    print[LINE(me, step)] = NONE;
    if
    :: use == IN_HALF -> SET_HALF(NONE);
    :: use == IN_SLOT -> staged[SLOT(me, step)] = NONE;
    :: else
    fi;
    if
    :: use != IN_LINE && !(keep_slice) -> slice[HALF(me, step)] = NONE;
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
  :: p < CATCH_UP_UNTIL ->
     if
     :: p == me || SINCE(seen[p], step) <= SINCE(before, step)
     :: else -> see(p, before);
     fi;
     p++;
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
    // To save states: what all have read is as good as gone.
    p = 0;
    do
    :: p < 2 * LEAD * N ->
       if
       :: staged[p] != NONE && ALL_BEYOND(staged[p]) -> staged[p] = NONE;
       :: else
       fi;
       p++;
    :: else -> break;
    od;
    p = 0;
    do
    :: p < 2 * N ->
       if
       :: slice[p] != NONE && ALL_BEYOND(slice[p]) -> slice[p] = NONE;
       :: else
       fi;
       p++;
    :: else -> break;
    od;
    p = 0;
  }
#ifdef FAULT_WORD_BEFORE_PRINT
  print[LINE(me, step)] = step;
#endif
}

inline stage(use) {
  d_step {
    if
    :: use == IN_HALF -> SET_HALF(step);
    :: use == IN_SLOT -> staged[SLOT(me, step)] = step;
    :: else
    fi;
  }
}

inline stage_and_publish(use) {
#ifdef FAULT_PUBLISH_BEFORE_DATA
  publish();
  stage(use);
#else
  stage(use);
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
  :: i < WAIT_UNTIL -> see((me + i) % N, step); i++;
  od;
  atomic { all_seen = step; i = 0; p = 0; }
}

// Reads what every peer wrote for this step, in its half and in its line. All at once, at any time
// before the next publish: whoever writes too early is caught as well as by reading one by one.
#define READ_ALL(use)                                                                      \
  d_step {                                                                                 \
    do                                                                                     \
    :: p < N -> assert(p == me || IN_PLACE(p, use) && print[LINE(p, step)] == step); p++;  \
    :: else -> break;                                                                      \
    od;                                                                                    \
    p = 0;                                                                                 \
  }
#define READ_SLICES                                                                        \
  d_step {                                                                                 \
    do                                                                                     \
    :: p < N -> assert(p == me || slice[HALF(p, step)] == step && print[LINE(p, step)] == step); p++; \
    :: else -> break;                                                                      \
    od;                                                                                    \
    p = 0;                                                                                 \
  }

inline one_shot(use) {
#ifdef FAULT_PUBLISH_BEFORE_READ
  next_step(use, false);
  stage_and_publish(use);
  if
  :: late ->
     step = PREV(step);
     READ_ALL(late_use);
     step = NEXT(step);
  :: else
  fi;
  wait_all();
  late = true;
  late_use = use;
#else
  next_step(use, false);
  stage_and_publish(use);
  wait_all();
  READ_ALL(use);
#endif
}

// To every rank, or to `root` only.
#define GETS(root) (root == NONE || root == me)

inline two_shot(chunks, root) {
  do
  :: c <= chunks ->
     next_step(IN_HALF, c > 0);
     if
     :: c < chunks ->
        stage(IN_HALF);
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
        READ_ALL(IN_HALF);
#ifdef FAULT_NEXT_HALF_IS_HALF
        slice[HALF(me, step)] = NEXT(step);
#else
        slice[HALF(me, NEXT(step))] = NEXT(step);
#endif
     :: else
     fi;
     if
     :: c > 0 && (GETS(root)) -> READ_SLICES;
     :: else
     fi;
     c++;
  :: c > chunks -> break;
  od;
  c = 0;
}

#ifndef NO_PLACES
#if N == 2
#define ALL_LIE (lies[0] && lies[1])
#else
#define ALL_LIE (lies[0] && lies[1] && lies[2])
#endif

#define READ_PLACES                                                                             \
  d_step {                                                                                      \
    do                                                                                          \
    :: p < N ->                                                                                 \
       assert(p == me || (lies[p] && input[p] == first) || (!lies[p] && IN_PLACE(p, IN_HALF))); \
       p++;                                                                                     \
    :: else -> break;                                                                           \
    od;                                                                                         \
    p = 0;                                                                                      \
  }

#ifdef FAULT_NO_CLOSING_STEP
#define CLOSING 0
#else
#define CLOSING 1
#endif

// algorithm/symmetric.hpp: in the first step each rank tells whether its input lies where all read it;
// then two_shot of `chunks` chunks, or, of none, direct_all_reduce, where all lie. Where all lie, the first
// chunk is folded after the first step, else after the second.
inline of_places(chunks) {
  if
  :: lies[me] = true;
  :: chunks > 0 -> lies[me] = false;
  fi;
  do
  :: c <= (chunks == 0 -> CLOSING : chunks + later) ->
     how = (c == 0 || chunks == 0 -> IN_LINE : IN_HALF);
     next_step(how, c > later);
     atomic {
       if
       :: c == 0 ->
          first = step;
          if
          :: lies[me] -> input[me] = step;
          :: else
          fi;
       :: c > 0 && c < chunks + later && !lies[me] -> stage(IN_HALF);
       :: else
       fi;
     }
     publish();
#ifdef FAULT_RETURN_EARLY
     if
     :: chunks > 0 && c == chunks + later -> input[me] = NONE;
     :: else
     fi;
#endif
     wait_all();
     later = (c == 0 -> (ALL_LIE -> 0 : 1) : later);
     if
     :: c >= later && c < (chunks == 0 -> 1 : chunks + later) ->
        READ_PLACES;
        if
        :: chunks > 0 -> slice[HALF(me, NEXT(step))] = NEXT(step);
        :: else
        fi;
     :: else
     fi;
     if
     :: chunks > 0 && c > later -> READ_SLICES;
     :: else
     fi;
     c++;
  :: else -> break;
  od;
  // The call returns, and its caller writes over the input.
  atomic { c = 0; later = 0; first = 0; lies[me] = false; input[me] = NONE; }
}
#endif

inline broadcast(root, use) {
  next_step(use, false);
  if
  :: me == root -> stage_and_publish(use);
  :: else ->
     publish();
     see(root, step);
     assert(IN_PLACE(root, use) && print[LINE(root, step)] == step);
  fi;
}

inline gather(root, use) {
  next_step(use, false);
  stage_and_publish(use);
  if
  :: me == root ->
#ifndef FAULT_ROOT_DOES_NOT_WAIT
     wait_all();
#endif
     READ_ALL(use);
  :: else
  fi;
}

proctype rank(byte me) {
  byte step, all_seen, what, how, p, i, c;
  byte seen[N];
#ifndef NO_PLACES
  byte first, later;
#endif
  byte idle = LEAD, unread = LEAD, back;
  bool whole;
#ifdef FAULT_PUBLISH_BEFORE_READ
  bool late;
  byte late_use;
#endif
  do
  :: atomic {
       // Whoever comes first to a call decides what it is; the others make the same.
       if
       :: begun[step] == 0 ->
#ifdef ONLY_PLACES
          select(what : OF_PLACES .. KINDS - 1);
#else
          select(what : 0 .. KINDS - 1);
#endif
          select(how : FIRST_USE .. LAST_USE);
#ifdef SMALL
          if
          :: what == TWO_SHOT || what == TWO_SHOT + 1 -> what = ONE_SHOT;
          :: else
          fi;
#endif
          if
          :: what == TWO_SHOT || what == TWO_SHOT + 1 || what >= TWO_SHOT_TO -> how = IN_HALF;
          :: else
          fi;
          calls[step] = what;
          uses[step] = how;
       :: else -> what = calls[step]; how = uses[step];
       fi;
       begun[step]++;
       if
       :: begun[step] == N -> begun[step] = 0; calls[step] = 0; uses[step] = 0;
       :: else
       fi;
     }
     if
     :: what == ONE_SHOT -> one_shot(how);
     :: what == TWO_SHOT || what == TWO_SHOT + 1 -> two_shot(what, NONE);
     :: what >= BROADCAST && what < GATHER -> broadcast(what - BROADCAST, how);
     :: what >= GATHER && what < TWO_SHOT_TO -> gather(what - GATHER, how);
     :: what >= TWO_SHOT_TO && what < OF_PLACES -> two_shot(1, what - TWO_SHOT_TO);
#ifndef NO_PLACES
     :: what >= OF_PLACES -> of_places(what - OF_PLACES);
#endif
     fi;
  od;
}

init {
  byte r;
  atomic {
    for (r : 0 .. LINES * N - 1) {
      print[r] = NONE;
    }
    for (r : 0 .. 2 * LEAD * N - 1) {
      staged[r] = NONE;
    }
    for (r : 0 .. 2 * N - 1) {
      slice[r] = NONE;
    }
    for (r : 0 .. N - 1) {
      input[r] = NONE;
      run rank(r);
    }
  }
}
