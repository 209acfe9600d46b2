// Files of named sessions: one folder for each tenant, one file for each session.
//
//   ROOT/t_TENANT/ID.session      written whole or not at all (src/session/session_file.h)
//   ROOT/t_TENANT/ID.session.new  while it is being written
//
// A tenant whose name has other characters than letters, digits, '-' and '_' has a folder x_HASH instead of t_TENANT.
// Callers check ids before making paths of them.
// Thread-safety: no state; calls about one session must not overlap.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvasir/status.h"

namespace kvasir::server {

struct SessionLimits {
  std::size_t count = 256;                       // of one tenant
  std::uint64_t bytes = std::uint64_t{8} << 30;  // of one tenant's files together
};

struct SessionInfo {
  std::string id;
  std::uint64_t bytes = 0;
  std::int64_t saved = 0;  // seconds since 1970
};

// Locks a folder of sessions against other servers while it lives. The lock ends with the process.
class SessionFolder {
 public:
  explicit SessionFolder(int folder) : folder_(folder) {}
  SessionFolder(SessionFolder&& other) noexcept : folder_(std::exchange(other.folder_, -1)) {}
  SessionFolder& operator=(SessionFolder&&) = delete;
  ~SessionFolder();
  int descriptor() const { return folder_; }

 private:
  int folder_;  // a descriptor with the lock
};

class SessionStore {
 public:
  SessionStore(std::string root, const SessionLimits& limits) : root_(std::move(root)), limits_(limits) {}

  // Makes the root, locks it for this server, and removes files that a crash left half written. Errors, naming the
  // folder: kInvalidArgument if it cannot be made or written; kIo if another server uses it.
  Result<SessionFolder> prepare() const;

  // Returns the path of a session's file. REQUIRES: is_session_id(id).
  std::string path_of(std::string_view tenant, std::string_view id) const;
  // Checks that one more turn of the session could be saved now. Errors: kResourceExhausted naming the session, for one
  // session too many or too many bytes.
  Status check_room(std::string_view tenant, std::string_view id) const;
  // Returns the path to which to write a session for commit(). Makes the tenant's folder. Errors: kIo; as check_room.
  Result<std::string> place_to_write(std::string_view tenant, std::string_view id) const;
  // Replaces the session by the file written there. Returns its bytes. Errors: kResourceExhausted naming the session if
  // the tenant's sessions would take too many bytes: the session is as it was; kIo.
  Result<std::uint64_t> commit(std::string_view tenant, std::string_view id) const;

  // Returns the sessions in order of id; none for a tenant without a folder.
  std::vector<SessionInfo> list(std::string_view tenant) const;
  // Removes the file written for commit().
  void discard(std::string_view tenant, std::string_view id) const;
  // Errors: kNotFound, kIo.
  Result<SessionInfo> find(std::string_view tenant, std::string_view id) const;
  Status remove(std::string_view tenant, std::string_view id) const;

 private:
  std::string folder_of(std::string_view tenant) const;

  std::string root_;
  SessionLimits limits_;
};

}  // namespace kvasir::server
