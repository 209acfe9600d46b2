// Opens named sessions when a request begins, and writes them when it has ended.
//
// Between two requests a session exists only on disk: lists show all sessions, a crash loses at most the current turn,
// and idle sessions take no KV memory. The desk's own thread checks and writes the files, so that no other thread waits
// for the disk; each turn reads and writes the whole file, as large as the session's keys and values. When the request
// starts, the engine copies them into its cache, part by part between passes. A turn that fails, or whose client leaves
// before it is written, leaves the session as it was.
//
// Thread-safety: the I/O thread's alone; `done` is called there.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "server/sessions/session_store.h"
#include "server/threads/step_thread.h"
#include "server/threads/text_thread.h"

namespace kvasir::server {

// The tenant and the id of a session.
struct SessionName {
  std::string tenant;
  std::string id;
  auto operator<=>(const SessionName&) const = default;
};

struct OpenedSession {
  std::shared_ptr<Session> session;  // used on the step thread; give it back with StepThread::retire
  bool restored = false;             // false: it is new
  bool other_arithmetic = false;     // see Engine::LoadedSession
  KvReport kv;                       // the session's report
};

class SessionDesk {
 public:
  // `steps` must outlive this.
  SessionDesk(StepThread& steps, SessionStore store);

  // Takes a session for one request. Returns false while another request has it.
  bool take(const SessionName& name) { return taken_.insert(name).second; }
  // REQUIRES: neither open() nor save() is under way.
  void give_back(const SessionName& name) { taken_.erase(name); }

  // Opens the session; if there is none and `create`, makes it as `fresh` says. Checks that one more turn could be
  // saved now. Errors: that of `fresh` if needed; as Engine::open_session, new_session and SessionStore::check_room;
  // kResourceExhausted also if too many calls wait. REQUIRES: taken.
  void open(const SessionName& name, const Result<SessionOptions>& fresh, bool create,
            std::function<void(Result<OpenedSession>)> done);
  // Writes the session, unless wanted() returns false (kCancelled). `wanted` is called on the desk's thread. Passes the
  // file's bytes to `done`. Errors: as SessionStore and Session::save. REQUIRES: taken; nothing else uses the session
  // until `done`.
  void save(const SessionName& name, std::shared_ptr<Session> session, std::function<bool()> wanted,
            std::function<void(const Result<std::uint64_t>&)> done);

  // Ends the desk's thread after its current job; waiting calls are dropped.
  void stop() { disk_.stop(); }

  const SessionStore& store() const { return store_; }
  StepThread& steps() { return steps_; }

 private:
  void make(const Result<SessionOptions>& fresh, std::function<void(Result<OpenedSession>)> done);
  Result<std::uint64_t> write(const SessionName& name, const Session& session,
                              const std::function<bool()>& wanted) const;

  StepThread& steps_;
  SessionStore store_;
  std::set<SessionName> taken_;
  TextThread disk_;  // last: its jobs use the others
};

}  // namespace kvasir::server
