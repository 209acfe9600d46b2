// The Hugging Face tools' cache of models, in their layout and with their locks:
//   models--USER--REPO/refs/REVISION                  the commit
//   models--USER--REPO/snapshots/COMMIT/PATH          a link to the content
//   models--USER--REPO/blobs/HASH[.incomplete]
//   .locks/models--USER--REPO/HASH.lock               held (flock) by the process that fetches this content
// Thread-safety: any thread; processes exclude each other by locks where a function says so.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "hub/model_name.h"
#include "kvasir/status.h"

namespace kvasir::hub {

// A lock on one content, held until the object ends.
class ContentLock {
 public:
  ContentLock() = default;
  explicit ContentLock(int descriptor) : descriptor_(descriptor) {}
  ContentLock(ContentLock&& other) noexcept;
  ContentLock& operator=(ContentLock&& other) noexcept;
  ~ContentLock();

 private:
  int descriptor_ = -1;
};

// A snapshot of a repository, with the weights in it.
struct CachedSnapshot {
  std::string repo;
  std::string revision;  // the first of its names; the commit if it has none
  std::string commit;
  std::vector<std::string> paths;  // GGUF files whose content is present, in order
};

// Contents of a repository that no snapshot refers to, from files that were not fetched whole.
struct LooseContents {
  std::string repo;
  std::uint64_t bytes = 0;
};

class HubCache {
 public:
  explicit HubCache(std::string root) : root_(std::move(root)) {}

  const std::string& root() const { return root_; }
  std::string snapshot(const std::string& repo, const std::string& commit) const;
  std::string blob(const std::string& repo, const std::string& hash) const;
  std::string partial(const std::string& repo, const std::string& hash) const;

  // Returns the commit that a revision had when it was last fetched; nullopt if it never was.
  std::optional<std::string> commit_of(const std::string& repo, const std::string& revision) const;
  // Returns the GGUF files of a snapshot whose content is present: paths inside the snapshot, in order.
  std::vector<std::string> files_of(const std::string& repo, const std::string& commit) const;
  // Returns all snapshots that hold a GGUF file.
  std::vector<CachedSnapshot> snapshots() const;
  // Returns all repositories with loose contents, in order.
  std::vector<LooseContents> loose() const;

  // Makes the folders for a repository's contents. Errors: the system's.
  Status prepare(const std::string& repo) const;
  // Locks a content. `waits` is called some ten times a second while another process has the lock; it returns false to
  // give up. Errors: kCancelled; the system's.
  Result<ContentLock> lock(const std::string& repo, const std::string& hash, const std::function<bool()>& waits) const;
  // Renames a complete partial file to its final name. REQUIRES: the lock.
  Status commit_blob(const std::string& repo, const std::string& hash) const;
  // Makes `path` of a snapshot a link to a content. Follows no symbolic link. REQUIRES: is_safe_path(path); the lock.
  Status link(const std::string& repo, const std::string& commit, const std::string& path,
              const std::string& hash) const;
  Status set_commit(const std::string& repo, const std::string& revision, const std::string& commit) const;

  // Removes files of a snapshot, and contents that nothing refers to any more. Returns the bytes freed. Errors:
  // kInvalidArgument while another process fetches one of them; the system's.
  Result<std::uint64_t> remove(const std::string& repo, const std::string& commit,
                               const std::vector<std::string>& paths) const;
  // Removes a repository's loose contents, except those that another process is fetching. Returns the bytes freed.
  // Errors: the system's.
  Result<std::uint64_t> remove_loose(const std::string& repo) const;

 private:
  std::string folder(const std::string& repo) const;
  // Returns the hash of the content that a link refers to; "" if it is not in this repository.
  std::string content_of(const std::string& repo, const std::string& link) const;
  // Returns the hashes of the contents that a repository's snapshots refer to. Errors: kIo.
  Result<std::set<std::string>> linked(const std::string& repo) const;

  std::string root_;
};

}  // namespace kvasir::hub
