// SPDX-License-Identifier: Apache-2.0
// Packets between two ranks (include/rankfold/detail/pair_channels.hpp): each sends packets to the other
// and receives the other's, whatever it can do next, and sleeps on its bell when it can do nothing. Any
// packet may be a rank's last. With ONE_WAY rank 0 only sends and rank 1 only receives, as blocking calls
// do. In some runs a thread aborts, at any time. There are neither slices nor deadlines here: if a wake-up were missed, all
// would stand still, which the checker reports as an invalid end state.
//
// Checked: a packet is received whole, once and in order, and is not written over while it is read;
// nobody sleeps for ever; after an abort every rank ends.
//
// There are SLOTS lines and slots; the code has more, with the same arithmetic. Packets count modulo M:
// the receiver is at most SLOTS behind, and M > SLOTS + 1 tells all that can meet apart. The bell counts
// modulo B: between a look at it and the sleep the other rank can raise it for what it has just stored,
// then for SLOTS packets and SLOTS acks, and the aborter once.
//
// Faults, each of which the checker must find:
//   FAULT_ONE_TOO_MANY         a packet is sent while its line and slot are still in use
//   FAULT_WORD_BEFORE_DATA     the word of a line is written before the data
//   FAULT_ACK_BEFORE_COPY      a packet is acknowledged before it has been copied out
//   FAULT_LOOK_BEFORE_STORE    wake looks for sleepers before the word is stored
//   FAULT_STORE_BUFFERED       a word is stored without seq_cst: it may leave the CPU after the look
//   FAULT_ACK_SILENT           an ack wakes nobody
//   FAULT_NO_ANNOUNCE          the sleeper does not count itself
//   FAULT_BELL_LATE            the sleeper looks at what it waits for, then reads the bell
//   FAULT_NO_LOOK              the sleeper reads the bell, and does not look again
//   FAULT_NO_RAISE             who wakes does not raise the bell before
//   FAULT_WAKE_BEFORE_RAISE    who wakes raises the bell after the wake-up
//   FAULT_ABORT_SILENT         the aborter rings no bells
//   FAULT_RING_BEFORE_RECORD   the aborter rings, then records
//   FAULT_NO_RECORD_LOOK       the sleeper does not look at the record after it has read the bell
#ifndef SLOTS
#define SLOTS 2
#endif

#define N 2
#if SLOTS == 1
#define M 4
#else
#define M (2 * SLOTS)
#endif
#if SLOTS <= 2
#define B 8
#else
#define B 10
#endif
#define NONE M
#define INC(x) x = (x + 1) % M
#define AT(r, n) (SLOTS * (r) + (n) % SLOTS)

// Of the packets that rank r sends:
byte word[SLOTS * N];  // of a line: 1 + the number of its packet, 0 at first
byte data[SLOTS * N];  // of a slot: the number of the packet whose data it holds; NONE while it is written
byte ack[N];           // how many the receiver has taken out

byte bell[N];
byte sleepers[N];
bool asleep[N];  // on its bell, in the kernel
bool recorded;

byte sent[N];
byte received[N];  // by rank r

#define OTHER (1 - me)
#define UNDER_WAY ((sent[me] + M - ack[me]) % M)
#ifdef FAULT_ONE_TOO_MANY
#define MAY_SEND (UNDER_WAY <= SLOTS)
#else
#define MAY_SEND (UNDER_WAY < SLOTS)
#endif
#define ARRIVED (word[AT(OTHER, received[me])] == 1 + received[me])

byte last[N];   // the packet after which rank r sends no more; NONE while it does not know
bool sends[N];  // whether rank r will send more
bool waits[N];  // whether it will receive more
#define SENDS (sends[me])
#define RECEIVES (waits[me])
#define CAN_GO_ON ((SENDS && MAY_SEND) || (RECEIVES && ARRIVED))

#ifdef FAULT_STORE_BUFFERED
byte buffer[N];  // a store that has not left its CPU: 1 + the packet's number
#endif

#ifdef FAULT_NO_RAISE
#define RAISE(r) skip
#else
#define RAISE(r) bell[r] = (bell[r] + 1) % B
#endif

inline ring(r) {
#ifdef FAULT_WAKE_BEFORE_RAISE
  asleep[r] = false;
  RAISE(r);
#else
  RAISE(r);
  asleep[r] = false;
#endif
}

#ifdef FAULT_LOOK_BEFORE_STORE
#define LOOK_EARLY(r) sees = sleepers[r] != 0;
#else
#define LOOK_EARLY(r)
#endif

// After a store for which rank r may wait.
inline wake(r) {
#ifndef FAULT_LOOK_BEFORE_STORE
  sees = sleepers[r] != 0;
#endif
  if
  :: sees -> ring(r);
  :: else
  fi;
  sees = false;
}

inline send_one() {
  if
  :: true
  :: last[me] = sent[me];
  fi;
#ifdef FAULT_WORD_BEFORE_DATA
  word[AT(me, sent[me])] = 1 + sent[me];
#endif
  data[AT(me, sent[me])] = NONE;
  data[AT(me, sent[me])] = sent[me];
  LOOK_EARLY(OTHER)
  atomic {
#ifdef FAULT_STORE_BUFFERED
    buffer[me] == 0;
    buffer[me] = 1 + sent[me];
#elif !defined(FAULT_WORD_BEFORE_DATA)
    word[AT(me, sent[me])] = 1 + sent[me];
#endif
    sends[me] = last[me] != sent[me];
    INC(sent[me]);
  }
  wake(OTHER);
}

inline receive_one() {
#ifdef FAULT_ACK_BEFORE_COPY
  INC(ack[OTHER]);
#endif
  // The copy: begins, and ends.
  assert(data[AT(OTHER, received[me])] == received[me]);
  assert(data[AT(OTHER, received[me])] == received[me]);
  LOOK_EARLY(OTHER)
  atomic {
    waits[me] = last[OTHER] != received[me];
    INC(received[me]);
#ifndef FAULT_ACK_BEFORE_COPY
    ack[OTHER] = received[me];
#endif
  }
#ifndef FAULT_ACK_SILENT
  wake(OTHER);
#endif
}

// wait_transfers in context.hpp.
inline sleep() {
#ifndef FAULT_NO_ANNOUNCE
  sleepers[me]++;
#endif
#ifdef FAULT_BELL_LATE
  if
  :: CAN_GO_ON || recorded -> goto awake;
  :: else
  fi;
  seen = bell[me];
#else
  seen = bell[me];
#ifndef FAULT_NO_LOOK
  if
  :: CAN_GO_ON -> goto awake;
  :: else
  fi;
#endif
#ifndef FAULT_NO_RECORD_LOOK
  if
  :: recorded -> goto awake;
  :: else
  fi;
#endif
#endif
  // FUTEX_WAIT: compares and goes to sleep as one step, as the kernel does under its lock.
  atomic {
    if
    :: bell[me] == seen -> asleep[me] = true;
    :: else
    fi;
  }
  !asleep[me];
awake:
  atomic {
    seen = 0;
#ifndef FAULT_NO_ANNOUNCE
    sleepers[me]--;
#endif
  }
}

proctype rank(byte me) {
  byte seen;
  bool sees;
  do
  :: SENDS && MAY_SEND -> send_one();
  :: RECEIVES && ARRIVED -> receive_one();
  :: recorded || (!SENDS && !RECEIVES) -> break;
  :: !recorded && (SENDS || RECEIVES) && !CAN_GO_ON -> sleep();
  od;
}

// abort() from a thread of its own, or of another rank.
proctype aborter() {
#ifdef FAULT_RING_BEFORE_RECORD
  ring(0);
  ring(1);
  recorded = true;
#else
  recorded = true;
#ifndef FAULT_ABORT_SILENT
  ring(0);
  ring(1);
#endif
#endif
}

#ifdef FAULT_STORE_BUFFERED
proctype drain(byte me) {
end:
  do
  :: atomic {
       buffer[me] != 0 -> word[AT(me, buffer[me] - 1)] = buffer[me]; buffer[me] = 0;
     }
  od;
}
#endif

init {
  byte n;
  atomic {
    for (n : 0 .. SLOTS * N - 1) { data[n] = NONE; }
    for (n : 0 .. N - 1) {
      last[n] = NONE;
#ifdef ONE_WAY
      sends[n] = n == 0;
      waits[n] = n == 1;
#else
      sends[n] = true;
      waits[n] = true;
#endif
    }
    for (n : 0 .. N - 1) {
      run rank(n);
#ifdef FAULT_STORE_BUFFERED
      run drain(n);
#endif
    }
#ifndef NO_ABORT
    if
    :: true
    :: true -> run aborter();
    fi;
#endif
  }
}
