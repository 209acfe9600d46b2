// Named sessions as requests use them: opened when a request begins, and written when it has ended.
//
// A session is on disk between two requests, and nowhere else: what a list shows is what there is, a crash loses at
// most the turn under way, and idle sessions take no KV memory. A thread of the desk's own checks and writes the files,
// so that nobody else waits for the disk; each turn reads and writes the whole file, as large as the session's keys and
// values. When the request starts the engine copies them into its cache, a part between two passes. A turn whose client
// leaves before it is written, or that fails, is not written: the session stays as it was before.
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
  SessionDesk(StepThread& steps, SessionStore store);

  // Takes a session for one request. Returns false while another has it.
  bool take(const SessionName& name) { return taken_.insert(name).second; }
  // REQUIRES: neither open() nor save() is under way.
  void give_back(const SessionName& name) { taken_.erase(name); }

  // Opens the session, or makes it as `fresh` says if there is none and `create`; then one more turn of it could be
  // saved now. Errors: that of `fresh` where it is needed; as Engine::open_session, new_session and
  // SessionStore::check_room; kResourceExhausted also where too many calls wait. REQUIRES: taken.
  void open(const SessionName& name, const Result<SessionOptions>& fresh, bool create,
            std::function<void(Result<OpenedSession>)> done);
  // Writes the session, unless nobody wants it any more (kCancelled). `wanted` is called on the desk's thread. The
  // result is the file's bytes. Errors: as SessionStore and Session::save. REQUIRES: taken; nothing else uses the
  // session until `done`.
  void save(const SessionName& name, std::shared_ptr<Session> session, std::function<bool()> wanted,
            std::function<void(const Result<std::uint64_t>&)> done);

  // Ends the desk's thread after what it does now; calls that wait are dropped.
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
