// The session that one completion continues: its name is taken, it is opened, written, and given back.
// Thread-safety: the I/O thread's alone; callbacks are called there.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "server/sessions/session_desk.h"

namespace kvasir::server {

// How an error of opening or writing a session is told.
struct SessionFault {
  int http = 0;
  std::string_view code;  // empty: that of the error
};
SessionFault fault_of_session(const Status& status);

class SessionHold {
 public:
  // Both must outlive this. `desk`: null where there are no sessions.
  SessionHold(SessionDesk* desk, StepThread& steps) : desk_(desk), steps_(steps) {}

  // Returns false while another request has the session. REQUIRES, as of the calls below: a desk.
  bool take(SessionName name);
  // Opens it, or if there is none and `create` makes it as `options` and the server's default policy say. `opened` and
  // `saved` must keep this alive. Errors: as SessionDesk; session files could not hold what would be made.
  void open(const RequestOptions& options, const std::string& default_policy, bool create,
            std::function<void(const Status&)> opened);
  // See SessionDesk::save.
  void save(std::function<bool()> wanted, std::function<void(const Status&)> saved);
  // Gives back session and name. While it is being opened or written does nothing: call it again behind that.
  void release();

  const OpenedSession& opened() const { return session_; }
  std::uint64_t saved_bytes() const { return bytes_; }  // 0: it was not saved
  // Returns the object "session" of an answer. `kv`: of the session now.
  nlohmann::json json(const KvReport& kv) const;

 private:
  SessionDesk* desk_;
  StepThread& steps_;
  SessionName name_;
  bool took_ = false;
  bool at_desk_ = false;  // it is being opened or written
  OpenedSession session_;
  std::uint64_t bytes_ = 0;
};

}  // namespace kvasir::server
