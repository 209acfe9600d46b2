#include "server/sessions/session_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <span>
#include <system_error>

#include "base/check.h"
#include "base/hash.h"
#include "base/status.h"
#include "server/api/api_request.h"

namespace kvasir::server {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEnding = ".session";

Status no_session(std::string_view id) {
  return make_status(StatusCode::kNotFound, "there is no session '{}'", id).about({"session"});
}

// Messages go to clients, so they name no path.
Status failed(std::string_view what, std::string_view id, const std::string& why) {
  return make_status(StatusCode::kIo, "cannot {} the session '{}': {}", what, id, why);
}

std::error_code make_folder(const std::string& path) {
  std::error_code error;
  if (fs::create_directories(path, error)) fs::permissions(path, fs::perms::owner_all, error);
  return error;
}

// Makes renames and removals in a folder durable. Returns the system's error, or 0.
int sync_folder(const std::string& path) {
  const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return errno;
  const int why = ::fsync(folder) == 0 ? 0 : errno;
  ::close(folder);
  return why;
}

// Returns the file's bytes and time, or why it is no session.
Result<SessionInfo> info_of(const std::string& path, std::string_view id) {
  struct stat found = {};
  if (::lstat(path.c_str(), &found) != 0 || S_ISLNK(found.st_mode)) return no_session(id);
  if (!S_ISREG(found.st_mode))
    return failed("use", id,
                  "its file is not a regular file; whoever runs the server can mend that in the folder of --sessions");
  return SessionInfo{std::string(id), static_cast<std::uint64_t>(found.st_size), found.st_mtim.tv_sec};
}

}  // namespace

SessionFolder::~SessionFolder() {
  if (folder_ >= 0) ::close(folder_);
}

Result<SessionFolder> SessionStore::prepare() const {
  std::error_code error = make_folder(root_);
  if (error)
    return invalid_argument("cannot make the folder '{}' for sessions: {}; give another", root_, error.message());
  SessionFolder folder(::open(root_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.descriptor() < 0 || ::access(root_.c_str(), W_OK | X_OK) != 0)
    return invalid_argument("sessions cannot be saved in the folder '{}': {}; give another", root_,
                            std::strerror(errno));
  if (::flock(folder.descriptor(), LOCK_EX | LOCK_NB) != 0)
    return make_status(StatusCode::kIo, "another server uses the sessions in '{}'; end it, or give another folder",
                       root_);
  for (fs::recursive_directory_iterator file(root_, error), end; !error && file != end; file.increment(error)) {
    if (file.depth() > 1) file.disable_recursion_pending();
    std::error_code kept;
    if (file->path().filename().string().find(".session.new") != std::string::npos && file->is_regular_file(kept))
      fs::remove(file->path(), kept);
  }
  return folder;
}

std::string SessionStore::folder_of(std::string_view tenant) const {
  if (tenant.empty()) return root_ + "/t_";
  if (is_session_id(tenant)) return root_ + "/t_" + std::string(tenant);
  Hasher hasher;
  hasher.add(std::as_bytes(std::span(tenant)));
  return root_ + "/x_" + hasher.digest().hex();
}

std::string SessionStore::path_of(std::string_view tenant, std::string_view id) const {
  KVASIR_CHECK(is_session_id(id));
  return folder_of(tenant) + "/" + std::string(id) + std::string(kEnding);
}

Status SessionStore::check_room(std::string_view tenant, std::string_view id) const {
  const std::vector<SessionInfo> all = list(tenant);
  std::uint64_t bytes = 0;
  bool exists = false;
  for (const SessionInfo& info : all) {
    bytes += info.bytes;
    exists = exists || info.id == id;
  }
  if (!exists && all.size() >= limits_.count)
    return exhausted("there are {} sessions already, as many as there may be; delete one", limits_.count)
        .about({"session"});
  if (bytes > limits_.bytes || (!exists && bytes == limits_.bytes))
    return exhausted("there are {} bytes of sessions already, and {} may be; delete some", bytes, limits_.bytes)
        .about({"session"});
  return {};
}

Result<std::string> SessionStore::place_to_write(std::string_view tenant, std::string_view id) const {
  if (const std::error_code error = make_folder(folder_of(tenant)); error) return failed("write", id, error.message());
  KVASIR_RETURN_IF_ERROR(check_room(tenant, id));
  return path_of(tenant, id) + ".new";
}

Result<std::uint64_t> SessionStore::commit(std::string_view tenant, std::string_view id) const {
  const std::string path = path_of(tenant, id);
  const std::string written = path + ".new";
  KVASIR_ASSIGN_OR_RETURN(const SessionInfo fresh, info_of(written, id));
  std::uint64_t bytes = fresh.bytes;
  for (const SessionInfo& other : list(tenant))
    if (other.id != id) bytes += other.bytes;
  std::error_code error;
  if (bytes > limits_.bytes) {
    fs::remove(written, error);
    return exhausted("with this session there would be {} bytes of them, and {} may be; delete some", bytes,
                     limits_.bytes)
        .about({"session"});
  }
  fs::rename(written, path, error);
  if (error) return failed("write", id, error.message());
  if (const int why = sync_folder(folder_of(tenant)); why != 0) return failed("write", id, std::strerror(why));
  return fresh.bytes;
}

std::vector<SessionInfo> SessionStore::list(std::string_view tenant) const {
  std::vector<SessionInfo> all;
  std::error_code error;
  for (fs::directory_iterator file(folder_of(tenant), error), end; !error && file != end; file.increment(error)) {
    const std::string name = file->path().filename().string();
    if (!name.ends_with(kEnding)) continue;
    const std::string id = name.substr(0, name.size() - kEnding.size());
    if (!is_session_id(id)) continue;
    if (Result<SessionInfo> info = info_of(file->path().string(), id); info.ok()) all.push_back(std::move(*info));
  }
  std::ranges::sort(all, {}, &SessionInfo::id);
  return all;
}

Result<SessionInfo> SessionStore::find(std::string_view tenant, std::string_view id) const {
  return info_of(path_of(tenant, id), id);
}

Status SessionStore::remove(std::string_view tenant, std::string_view id) const {
  const std::string path = path_of(tenant, id);
  KVASIR_RETURN_IF_ERROR(info_of(path, id).status());
  std::error_code error;
  fs::remove(path, error);
  if (error) return failed("delete", id, error.message());
  discard(tenant, id);
  if (const int why = sync_folder(folder_of(tenant)); why != 0) return failed("delete", id, std::strerror(why));
  return {};
}

void SessionStore::discard(std::string_view tenant, std::string_view id) const {
  std::error_code error;
  fs::remove(path_of(tenant, id) + ".new", error);
}

}  // namespace kvasir::server
