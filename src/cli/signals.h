// Signals: interrupts that commands poll for, closed pipes, and weights that go away while they are read.
// Thread-safety: interrupted() may be called from any thread; the others from the main thread.
#pragma once

#include <functional>

namespace kvasir::cli {

// Turns the signals for a closed pipe, and for a file at its size limit, into write errors.
void ignore_write_signals();

// Makes a SIGBUS (a mapped file was truncated) end the process with a line that says what happened.
void explain_bus_errors();

// After this call the first SIGINT (Ctrl-C), SIGTERM or SIGHUP makes interrupted() true until it is cleared, and a
// second one ends the process. Before the call the first one ends the process, so call it only where polling starts.
void catch_interrupts();
bool interrupted();
void clear_interrupt();
// Reverts catch_interrupts(): signals act as before it.
void release_interrupts();
int interrupting_signal();  // the last interrupt's signal; 0: none

// `restore` (null: nothing) runs before a second signal ends the process. It must be async-signal-safe.
void before_forced_end(void (*restore)());

// Ends the process by a signal's default action, so that a shell loop around it ends too.
[[noreturn]] void end_by_signal(int signal);

// Waits until standard input can be read or has ended. Returns false on an interrupt. `on_other_signal` (may be empty)
// runs before the wait and after each other handled signal.
bool wait_for_input(const std::function<void()>& on_other_signal = {});

}  // namespace kvasir::cli
