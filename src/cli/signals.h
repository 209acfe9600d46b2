// Signals: interrupts that commands poll for, closed pipes, and weights that go away while they are read.
// Thread-safety: interrupted() may be called from any thread; the others from the main thread.
#pragma once

#include <functional>

namespace kvasir::cli {

// Turns the signals for a closed pipe and for a file at its size limit into write errors.
void ignore_write_signals();

// Makes the end of a mapped file's memory (SIGBUS) end the process with a line that says what happened.
void explain_bus_errors();

// After catch_interrupts(), the first SIGINT (Ctrl-C), SIGTERM or SIGHUP makes interrupted() true until it is cleared;
// a second one ends the process. Before the call, the first one does. So call it only where polling starts.
void catch_interrupts();
bool interrupted();
void clear_interrupt();
// Ends what catch_interrupts() began: signals act as before it.
void release_interrupts();
int interrupting_signal();  // the signal of the last interrupt; 0: there was none

// `restore` (may be null: nothing) runs before a second signal ends the process. It must be async-signal-safe.
void before_forced_end(void (*restore)());

// Ends the process by a signal's default action, so that a shell's loop around it ends too.
[[noreturn]] void end_by_signal(int signal);

// Waits until standard input can be read or has ended. Returns false on an interrupt. `on_other_signal` (may be empty)
// runs before the wait and after each other signal that is handled.
bool wait_for_input(const std::function<void()>& on_other_signal = {});

}  // namespace kvasir::cli
