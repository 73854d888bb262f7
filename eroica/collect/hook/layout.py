"""The ring file's layout, shared by the hook that writes it and the agent that reads it.

All words are unsigned 64-bit, native order. A header of 64 words, then CAPACITY events of two
words: CLOCK_MONOTONIC nanoseconds, and kind | owner << 8. ``owner`` numbers loaders and
optimizers in the order they were first seen. ``POSITION`` counts the events ever written, so the
newest is at (POSITION - 1) % CAPACITY.
"""

MAGIC = 0x31_41_43_49_4F_52_45  # "EROICA1"
HEADER_WORDS = 64
CAPACITY = 1 << 13
NUM_WORDS = HEADER_WORDS + 2 * CAPACITY
NUM_BYTES = 8 * NUM_WORDS
NEVER = (1 << 64) - 1

# header words
(
    W_MAGIC,
    W_PID,
    W_RANK,
    W_WORLD_SIZE,
    W_LOCAL_RANK,
    W_LOCAL_WORLD_SIZE,
    W_UNIX_MINUS_MONOTONIC,
    W_POSITION,
    W_NUM_OPTIMIZER,
    W_NUM_LOADER,
    W_NUM_MARKED,
    W_BORDER_OPTIMIZER,  # the hook looks at these three words at step borders:
    W_BORDER_LOADER,  # "when the count reaches this, see to the window"
    W_BORDER_MARKED,
    W_THREAD,  # OS thread that trains
    W_SIGNAL,  # signal on which faulthandler writes stacks, 0 if none
    W_EXITING,
    W_WINDOW,  # 1 while a profiler window is open
    W_RESTART,
    W_START,
) = range(20)

# kinds of event
NEXT_IN, NEXT_OUT, STEP_IN, STEP_OUT, MARK = 1, 2, 3, 4, 5
LETTERS = {NEXT_IN: "n", NEXT_OUT: "N", STEP_IN: "s", STEP_OUT: "S", MARK: "M"}
