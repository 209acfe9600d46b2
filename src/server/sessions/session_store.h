// Files of named sessions: one folder for each tenant, one file for each session.
//
//   ROOT/t_TENANT/ID.session      written whole or not at all (src/session/session_file.h)
//   ROOT/t_TENANT/ID.session.new  while it is being written
//
// A tenant whose name is not made of letters, digits, '-' and '_' alone has a folder x_HASH in place of t_TENANT. Ids
// are checked before a path is made of them.
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

// Keeps other servers from using a folder of sessions while it lives. A process that is killed keeps nobody away.
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

  // Makes the root, takes it for this server, and removes what a crash left half written. Errors, naming the folder:
  // kInvalidArgument if it cannot be made or written; kIo if another server uses it.
  Result<SessionFolder> prepare() const;

  // Where a session's file is. REQUIRES: is_session_id(id).
  std::string path_of(std::string_view tenant, std::string_view id) const;
  // Checks that one more turn of the session could be saved now. Errors: kResourceExhausted naming the session, for one
  // session too many or too many bytes.
  Status check_room(std::string_view tenant, std::string_view id) const;
  // Where to write a session that commit() is to take. Makes the tenant's folder. Errors: kIo; as check_room.
  Result<std::string> place_to_write(std::string_view tenant, std::string_view id) const;
  // Puts what was written there in the place of the session. Returns its bytes. Errors: kResourceExhausted naming the
  // session if the tenant's sessions would take too many bytes: the session is as it was; kIo.
  Result<std::uint64_t> commit(std::string_view tenant, std::string_view id) const;

  // By id. A tenant without a folder has none.
  std::vector<SessionInfo> list(std::string_view tenant) const;
  // Removes what was written for commit().
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
