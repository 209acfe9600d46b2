#include "hub/cache.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <set>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

#include "base/atomic_file.h"
#include "base/mapped_file.h"
#include "base/status.h"

namespace kvasir::hub {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "models--";

std::string folder_name(std::string_view repo) {
  const std::size_t slash = repo.find('/');
  return std::string(kPrefix) + std::string(repo.substr(0, slash)) + "--" + std::string(repo.substr(slash + 1));
}

// Returns the repository that a folder is named for; "" for other folders.
std::string repo_of(std::string_view folder) {
  if (!folder.starts_with(kPrefix)) return "";
  folder.remove_prefix(kPrefix.size());
  const std::size_t dashes = folder.find("--");
  if (dashes == std::string_view::npos) return "";
  std::string repo = std::string(folder.substr(0, dashes)) + "/" + std::string(folder.substr(dashes + 2));
  return is_repo_id(repo) ? repo : "";
}

Status make_folders(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return make_status(StatusCode::kIo, "cannot create the folder '{}': {}", path, error.message());
  return {};
}

void sync_folder(const std::string& path) {
  const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  ::fsync(folder);
  ::close(folder);
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error))
    names.push_back(entry->path().filename().string());
  std::ranges::sort(names);
  return names;
}

// Returns the paths below a folder that are not folders, relative to it, in order; none if the folder does not exist.
// Does not follow links to folders. Errors: kIo if a part could not be listed.
Result<std::vector<std::string>> all_below(const std::string& folder) {
  std::error_code error;
  for (int tries = 0; tries < 5; ++tries) {  // a folder may vanish while it is listed
    std::vector<std::string> paths;
    error.clear();
    if (!fs::exists(folder, error)) return paths;
    fs::recursive_directory_iterator entry(folder, error);
    for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
      std::error_code gone;
      if (entry->symlink_status(gone).type() != fs::file_type::directory)
        paths.push_back(entry->path().lexically_relative(folder).string());
    }
    std::ranges::sort(paths);
    if (!error) return paths;
  }
  return make_status(StatusCode::kIo, "cannot list '{}': {}", folder, error.message());
}

// As all_below, but none where the listing failed.
std::vector<std::string> paths_below(const std::string& folder) {
  Result<std::vector<std::string>> paths = all_below(folder);
  return paths.ok() ? std::move(*paths) : std::vector<std::string>();
}

// Removes a folder and its subfolders, as far as they are empty.
void remove_empty(const std::string& folder) {
  std::vector<std::string> folders = {folder};
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    std::error_code gone;
    if (entry->symlink_status(gone).type() == fs::file_type::directory) folders.push_back(entry->path().string());
  }
  for (; !folders.empty(); folders.pop_back()) ::rmdir(folders.back().c_str());
}

// Removes a file or link, if it exists. Adds a file's size to `freed`.
Status unlink_counted(const std::string& path, std::uint64_t& freed) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return {};
  if (::unlink(path.c_str()) != 0) return errno_status("remove", path);
  if (S_ISREG(status.st_mode)) freed += static_cast<std::uint64_t>(status.st_size);
  return {};
}

// An open folder, immune to changes of its path.
class OpenFolder {
 public:
  explicit OpenFolder(int descriptor) : descriptor_(descriptor) {}
  OpenFolder(const OpenFolder&) = delete;
  OpenFolder& operator=(const OpenFolder&) = delete;
  ~OpenFolder() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int get() const { return descriptor_; }
  // Enters a subfolder, which is made if missing. Does not follow symbolic links.
  bool enter(const std::string& name) {
    (void)::mkdirat(descriptor_, name.c_str(), 0755);
    const int next = ::openat(descriptor_, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (next < 0) return false;
    ::close(std::exchange(descriptor_, next));
    return true;
  }

 private:
  int descriptor_;
};

}  // namespace

ContentLock::ContentLock(ContentLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
ContentLock& ContentLock::operator=(ContentLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}
ContentLock::~ContentLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::string HubCache::folder(const std::string& repo) const {
  return root_ + "/" + folder_name(repo);
}
std::string HubCache::snapshot(const std::string& repo, const std::string& commit) const {
  return folder(repo) + "/snapshots/" + commit;
}
std::string HubCache::blob(const std::string& repo, const std::string& hash) const {
  return folder(repo) + "/blobs/" + hash;
}
std::string HubCache::partial(const std::string& repo, const std::string& hash) const {
  return blob(repo, hash) + ".incomplete";
}

std::string HubCache::content_of(const std::string& repo, const std::string& link) const {
  std::error_code error, missing;
  const fs::path target = fs::read_symlink(link, error);
  if (error) return "";
  // Another program may have written an absolute link, or one through another path to the cache.
  const fs::path whole = fs::weakly_canonical(fs::path(link).parent_path() / target, error);
  const fs::path blobs = fs::weakly_canonical(folder(repo) + "/blobs", missing);
  return !error && !missing && whole.parent_path() == blobs ? whole.filename().string() : "";
}

std::optional<std::string> HubCache::commit_of(const std::string& repo, const std::string& revision) const {
  std::error_code error;
  const std::string ref = folder(repo) + "/refs/" + revision;
  if (fs::is_regular_file(ref, error)) {
    Result<std::string> commit = read_file(ref, 256);
    if (!commit.ok()) return std::nullopt;
    while (commit->ends_with('\n')) commit->pop_back();
    if (is_hex(*commit, 40) || is_hex(*commit, 64)) return std::move(*commit);
    return std::nullopt;
  }
  if (is_hex(revision, 40) && fs::is_directory(snapshot(repo, revision), error)) return revision;
  return std::nullopt;
}

std::vector<std::string> HubCache::files_of(const std::string& repo, const std::string& commit) const {
  const std::string folder = snapshot(repo, commit);
  std::vector<std::string> paths;
  for (std::string& path : paths_below(folder)) {
    std::error_code error;
    if (path.ends_with(".gguf") && fs::is_regular_file(folder + "/" + path, error)) paths.push_back(std::move(path));
  }
  return paths;
}

std::vector<CachedSnapshot> HubCache::snapshots() const {
  std::vector<CachedSnapshot> found;
  for (const std::string& name : names_in(root_)) {
    const std::string repo = repo_of(name);
    if (repo.empty()) continue;
    std::vector<std::string> revisions = paths_below(folder(repo) + "/refs");
    std::stable_partition(revisions.begin(), revisions.end(),
                          [](const std::string& revision) { return revision == "main"; });
    for (const std::string& commit : names_in(folder(repo) + "/snapshots")) {
      CachedSnapshot snapshot{repo, commit, commit, files_of(repo, commit)};
      const auto revision =
          std::ranges::find_if(revisions, [&](const std::string& other) { return commit_of(repo, other) == commit; });
      if (revision != revisions.end()) snapshot.revision = *revision;
      if (!snapshot.paths.empty()) found.push_back(std::move(snapshot));
    }
  }
  return found;
}

Result<std::set<std::string>> HubCache::linked(const std::string& repo) const {
  KVASIR_ASSIGN_OR_RETURN(const std::vector<std::string> paths, all_below(folder(repo) + "/snapshots"));
  std::set<std::string> contents;
  for (const std::string& path : paths) contents.insert(content_of(repo, folder(repo) + "/snapshots/" + path));
  return contents;
}

std::vector<LooseContents> HubCache::loose() const {
  std::vector<LooseContents> found;
  for (const std::string& name : names_in(root_)) {
    LooseContents loose{repo_of(name)};
    if (loose.repo.empty()) continue;
    const Result<std::set<std::string>> linked = this->linked(loose.repo);
    if (!linked.ok()) continue;
    bool any = false;
    for (const std::string& content : names_in(folder(loose.repo) + "/blobs")) {
      std::error_code error;
      const std::uintmax_t bytes = fs::file_size(folder(loose.repo) + "/blobs/" + content, error);
      if (error || linked->contains(content)) continue;
      any = true;
      loose.bytes += bytes;
    }
    if (any) found.push_back(std::move(loose));
  }
  return found;
}

Status HubCache::prepare(const std::string& repo) const {
  KVASIR_RETURN_IF_ERROR(make_folders(root_ + "/.locks/" + folder_name(repo)));
  return make_folders(folder(repo) + "/blobs");
}

Result<ContentLock> HubCache::lock(const std::string& repo, const std::string& hash,
                                   const std::function<bool()>& waits) const {
  const std::string path = root_ + "/.locks/" + folder_name(repo) + "/" + hash + ".lock";
  while (true) {
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (descriptor < 0) return errno_status("create", path);
    ContentLock lock(descriptor);
    while (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) return errno_status("lock", path);
      if (!waits()) return Status(StatusCode::kCancelled, "stopped while another process fetches the same file");
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    // The process that held the lock may have removed the file. Then no other process finds the locked file.
    struct stat held {
    }, named{};
    if (::fstat(descriptor, &held) == 0 && ::stat(path.c_str(), &named) == 0 && held.st_ino == named.st_ino)
      return lock;
  }
}

Status HubCache::commit_blob(const std::string& repo, const std::string& hash) const {
  const std::string from = partial(repo, hash);
  if (::rename(from.c_str(), blob(repo, hash).c_str()) != 0) return errno_status("rename", from);
  sync_folder(folder(repo) + "/blobs");
  return {};
}

Status HubCache::link(const std::string& repo, const std::string& commit, const std::string& path,
                      const std::string& hash) const {
  KVASIR_RETURN_IF_ERROR(make_folders(folder(repo) + "/snapshots"));
  OpenFolder at(::open((folder(repo) + "/snapshots").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  std::string target = "../../blobs/" + hash;
  std::string rest = commit + "/" + path;
  const auto failed = [&](const char* what) { return errno_status(what, snapshot(repo, commit) + "/" + path); };
  if (at.get() < 0) return failed("create");
  for (std::size_t slash = rest.find('/'); slash != std::string::npos; slash = rest.find('/')) {
    if (!at.enter(rest.substr(0, slash))) return failed("create");
    rest.erase(0, slash + 1);
    if (rest.find('/') != std::string::npos) target.insert(0, "../");
  }
  // Not among the snapshots, where it would count as a reference if this process died here.
  const std::string temporary = blob(repo, hash) + ".link";
  (void)::unlink(temporary.c_str());
  if (::symlink(target.c_str(), temporary.c_str()) != 0) return failed("create");
  if (::renameat(AT_FDCWD, temporary.c_str(), at.get(), rest.c_str()) != 0) {
    Status status = failed("create");
    (void)::unlink(temporary.c_str());
    return status;
  }
  ::fsync(at.get());
  return {};
}

Status HubCache::set_commit(const std::string& repo, const std::string& revision, const std::string& commit) const {
  if (revision == commit) return {};
  const fs::path path = folder(repo) + "/refs/" + revision;
  KVASIR_RETURN_IF_ERROR(make_folders(path.parent_path().string()));
  KVASIR_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path.string()));
  KVASIR_RETURN_IF_ERROR(file.write(std::as_bytes(std::span(commit))));
  return file.commit();
}

Result<std::uint64_t> HubCache::remove(const std::string& repo, const std::string& commit,
                                       const std::vector<std::string>& paths) const {
  KVASIR_RETURN_IF_ERROR(prepare(repo));
  std::set<std::string> contents;
  std::vector<ContentLock> locks;
  for (const std::string& path : paths)
    if (const std::string content = content_of(repo, snapshot(repo, commit) + "/" + path); !content.empty())
      contents.insert(content);
  for (const std::string& content : contents) {
    Result<ContentLock> lock = this->lock(repo, content, [] { return false; });
    if (!lock.ok() && lock.status().code() == StatusCode::kCancelled)
      return invalid_argument("{} is being fetched by another process; nothing is removed", repo);
    if (!lock.ok()) return lock.status();
    locks.push_back(std::move(*lock));
  }
  std::uint64_t freed = 0;
  for (const std::string& path : paths)
    KVASIR_RETURN_IF_ERROR(unlink_counted(snapshot(repo, commit) + "/" + path, freed));
  KVASIR_ASSIGN_OR_RETURN(const std::set<std::string> still_linked, linked(repo));
  for (const std::string& other : still_linked) contents.erase(other);
  for (const std::string& content : contents) KVASIR_RETURN_IF_ERROR(unlink_counted(blob(repo, content), freed));
  locks.clear();
  remove_empty(snapshot(repo, commit));
  if (!still_linked.empty()) return freed;
  KVASIR_ASSIGN_OR_RETURN(const std::uint64_t loose, remove_loose(repo));
  return freed + loose;
}

Result<std::uint64_t> HubCache::remove_loose(const std::string& repo) const {
  const std::string blobs = folder(repo) + "/blobs";
  KVASIR_RETURN_IF_ERROR(prepare(repo));
  std::uint64_t freed = 0;
  for (const std::string& name : names_in(blobs)) {
    const Result<ContentLock> lock = this->lock(repo, name.substr(0, name.find('.')), [] { return false; });
    if (lock.status().code() == StatusCode::kCancelled) continue;  // another process fetches it
    if (!lock.ok()) return lock.status();
    KVASIR_ASSIGN_OR_RETURN(const std::set<std::string> linked, this->linked(repo));
    if (!linked.contains(name)) KVASIR_RETURN_IF_ERROR(unlink_counted(blobs + "/" + name, freed));
  }
  // Without contents and links only names of revisions are left. Nothing is removed that another process has begun
  // meanwhile.
  if (::rmdir(blobs.c_str()) == 0) {
    std::error_code error;
    remove_empty(folder(repo) + "/snapshots");
    fs::remove_all(folder(repo) + "/refs", error);
    ::rmdir(folder(repo).c_str());
  }
  return freed;
}

}  // namespace kvasir::hub
