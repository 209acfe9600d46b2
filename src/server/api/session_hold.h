// Holds the session that one completion continues: takes its name, opens it, writes it and gives it back.
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

// How an error of opening or writing a session is reported.
struct SessionFault {
  int http = 0;
  std::string_view code;  // empty: that of the error
};
SessionFault fault_of_session(const Status& status);

class SessionHold {
 public:
  // `desk` must outlive this; null where there are no sessions.
  explicit SessionHold(SessionDesk* desk) : desk_(desk) {}

  // Takes a session. Returns false while another request has it. REQUIRES, as the calls below: a desk.
  bool take(SessionName name);
  // Opens the session. If there is none and `create`, makes it from `options` and the server's default policy. `opened`
  // and `saved` must keep this alive. Errors: as SessionDesk; session files cannot save the policy.
  void open(const RequestOptions& options, const std::string& default_policy, bool create,
            std::function<void(const Status&)> opened);
  // See SessionDesk::save.
  void save(std::function<bool()> wanted, std::function<void(const Status&)> saved);
  // Gives back session and name. Does nothing while the session is being opened or written: call it again afterwards.
  void release();

  const OpenedSession& opened() const { return session_; }
  std::uint64_t saved_bytes() const { return bytes_; }  // 0: not saved
  // Returns the object "session" of an answer. `kv`: the session's current report.
  nlohmann::json json(const KvReport& kv) const;

 private:
  SessionDesk* desk_;
  SessionName name_;
  bool took_ = false;
  bool at_desk_ = false;  // the session is being opened or written
  OpenedSession session_;
  std::uint64_t bytes_ = 0;
};

}  // namespace kvasir::server
