// Named sessions as requests use them: loaded from its file when a request begins, and written back when it ends.
//
// A session is on disk between two requests, and nowhere else: what a list shows is what there is, a crash loses at
// most the turn under way, and idle sessions take no KV memory. The price is that each turn reads and writes the file,
// as large as the session's keys and values, on the step thread: between two passes, while all others wait. Under a
// policy with a bound that is bounded too; under `full` it grows with the text. A turn whose client leaves, or that
// fails, is not written: the session stays as it was before.
//
// Thread-safety: the I/O thread's alone; `done` is called there.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "server/session_store.h"
#include "server/step_thread.h"

namespace kvasir::server {

// Whose session, and which.
struct SessionName {
  std::string tenant;
  std::string id;
  auto operator<=>(const SessionName&) const = default;
};

struct OpenedSession {
  std::shared_ptr<Session> session;  // of the step thread: give it back with StepThread::retire
  bool restored = false;             // otherwise it is new
  bool other_arithmetic = false;     // see Engine::LoadedSession
  KvReport kv;                       // of what it holds
};

class SessionDesk {
 public:
  // `steps` must outlive this.
  SessionDesk(StepThread& steps, SessionStore store) : steps_(steps), store_(std::move(store)) {}

  // Takes a session for one request. Returns false while another has it.
  bool take(const SessionName& name) { return taken_.insert(name).second; }
  void give_back(const SessionName& name) { taken_.erase(name); }

  // Loads the session, or makes it under `policy` if there is none and `create`. Errors: as Engine::load_session and
  // new_session; kResourceExhausted also where too many questions wait. REQUIRES: taken.
  void open(const SessionName& name, const std::string& policy, bool create,
            std::function<void(Result<OpenedSession>)> done);
  // Writes the session. The result is the file's bytes. Errors: as SessionStore and Session::save. REQUIRES: taken.
  void save(const SessionName& name, std::shared_ptr<Session> session,
            std::function<void(const Result<std::uint64_t>&)> done);

  const SessionStore& store() const { return store_; }
  StepThread& steps() { return steps_; }

 private:
  StepThread& steps_;
  SessionStore store_;
  std::set<SessionName> taken_;
};

}  // namespace kvasir::server
