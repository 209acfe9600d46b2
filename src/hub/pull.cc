#include "hub/pull.h"

#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "base/status.h"
#include "hub/cache.h"
#include "hub/choose_file.h"
#include "hub/file_transfer.h"
#include "hub/hub_api.h"

namespace kvasir::hub {
namespace {

constexpr std::size_t kMostAnswer = 32 << 20;  // bytes of one answer of the API
constexpr int kMostPages = 200;                // of a listing
constexpr int kAtOnce = 4;

struct Listing {
  std::string commit;
  std::vector<HubFile> files;
};

Result<Listing> list_files(const ModelName& name, const std::string& endpoint, const TransferOptions& transfer) {
  const std::string api = endpoint + "/api/models/" + name.repo;
  const std::string revision = url_escaped(name.revision, false);
  KVASIR_ASSIGN_OR_RETURN(const std::string about,
                          fetch_text(api + "/revision/" + revision, transfer, kMostAnswer, nullptr));
  Listing listing;
  KVASIR_ASSIGN_OR_RETURN(listing.commit, parse_commit(about));
  std::string page = api + "/tree/" + listing.commit + "?recursive=true";
  for (int pages = 0; !page.empty(); ++pages) {
    std::string link;
    if (pages == kMostPages) return data_loss("the hub's listing of {} does not end", name.repo);
    KVASIR_ASSIGN_OR_RETURN(const std::string text, fetch_text(page, transfer, kMostAnswer, &link));
    KVASIR_RETURN_IF_ERROR(parse_tree(text, listing.files));
    page = next_page(link);
    if (!page.empty() && origin_of(page) != origin_of(endpoint))
      return data_loss("the hub's listing of {} goes on at another host", name.repo);
  }
  return listing;
}

std::uint64_t size_of(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
}

// Returns whether the content of a file is present. A content of another size is damaged and will be replaced.
bool has(const HubCache& cache, const std::string& repo, const HubFile& file) {
  struct stat status {};
  return ::stat(cache.blob(repo, file.oid).c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         static_cast<std::uint64_t>(status.st_size) == file.size;
}

// Returns whether all of a snapshot's files are present and linked.
bool has_all(const HubCache& cache, const ModelName& name, const std::string& commit,
             const std::vector<HubFile>& files) {
  std::error_code error;
  return cache.commit_of(name.repo, name.revision) == commit && std::ranges::all_of(files, [&](const HubFile& file) {
           return has(cache, name.repo, file) &&
                  std::filesystem::equivalent(cache.snapshot(name.repo, commit) + "/" + file.path,
                                              cache.blob(name.repo, file.oid), error);
         });
}

Status check_room(const HubCache& cache, const std::string& repo, const std::vector<HubFile>& files) {
  std::uint64_t missing = 0;
  for (const HubFile& file : files)
    if (!has(cache, repo, file)) missing += file.size - std::min(file.size, size_of(cache.partial(repo, file.oid)));
  struct statvfs disk {};
  if (::statvfs(cache.root().c_str(), &disk) != 0) return {};
  const std::uint64_t room = static_cast<std::uint64_t>(disk.f_bavail) * disk.f_frsize;
  if (missing <= room) return {};
  return exhausted("the disk of '{}' has {} bytes free, and {} are needed; make room, or set HF_HUB_CACHE",
                   cache.root(), room, missing);
}

// Locks all files, present ones too, so that none is removed before it is linked. All processes lock in the same order.
Status lock_all(const HubCache& cache, const ModelName& name, std::vector<HubFile> files,
                const TransferOptions& transfer, std::vector<ContentLock>& locks) {
  std::ranges::sort(files, {}, &HubFile::oid);
  const auto same = [](const HubFile& a, const HubFile& b) { return a.oid == b.oid; };
  files.erase(std::unique(files.begin(), files.end(), same), files.end());
  bool said = false;
  const auto waits = [&] {
    if (!std::exchange(said, true) && transfer.note)
      transfer.note(fmt::format("another process is fetching {}; waiting for it", name.repo));
    return !transfer.cancelled || !transfer.cancelled();
  };
  for (const HubFile& file : files) {
    KVASIR_ASSIGN_OR_RETURN(ContentLock lock, cache.lock(name.repo, file.oid, waits));
    locks.push_back(std::move(lock));
  }
  return {};
}

// Links each file as soon as it is complete.
class NamingTransfer : public FileTransfer {
 public:
  NamingTransfer(std::string url, const HubFile& file, const HubCache& cache, const ModelName& name,
                 const TransferOptions& transfer)
      : FileTransfer(std::move(url), file, cache.partial(name.repo, file.oid), transfer.cancelled),
        cache_(cache),
        name_(name) {}

  Verdict end() override {
    Verdict verdict = FileTransfer::end();
    if (verdict.status.ok()) verdict.status = cache_.commit_blob(name_.repo, file().oid);
    return verdict;
  }

 private:
  const HubCache& cache_;
  const ModelName& name_;
};

Status fetch_files(const HubCache& cache, const ModelName& name, const std::string& address,
                   const std::vector<HubFile>& files, const PullOptions& options) {
  std::vector<std::unique_ptr<NamingTransfer>> transfers;
  std::vector<Transfer*> pointers;
  std::uint64_t there = 0, total = 0;
  for (const HubFile& file : files) {
    total += file.size;
    const bool planned =
        std::ranges::any_of(transfers, [&](const auto& other) { return other->file().oid == file.oid; });
    if (planned || has(cache, name.repo, file)) {
      there += file.size;
      continue;
    }
    transfers.push_back(
        std::make_unique<NamingTransfer>(address + url_escaped(file.path, true), file, cache, name, options.transfer));
    pointers.push_back(transfers.back().get());
  }
  if (transfers.empty()) return {};
  return run_transfers(pointers, options.transfer, kAtOnce, [&] {
    std::uint64_t done = there;
    for (const auto& transfer : transfers) done += transfer->written();
    if (options.progress) options.progress(done, total);
  });
}

}  // namespace

std::optional<CachedModel> find_cached(const HubCache& cache, const ModelName& name) {
  const std::optional<std::string> commit = cache.commit_of(name.repo, name.revision);
  if (!commit) return std::nullopt;
  const std::vector<std::string> paths = cache.files_of(name.repo, *commit);
  Result<std::vector<std::string>> chosen = choose_files(paths, name);
  if (!chosen.ok()) return std::nullopt;
  // A file nearer to the request, or to the usual choice, may exist without having been fetched.
  const std::string wanted = name.quant.empty() ? "Q4_K_M" : upper(name.quant);
  const bool sure = !name.file.empty() || quant_of(chosen->front()) == wanted;
  return CachedModel{*commit, std::move(*chosen), sure};
}

Result<PulledModel> pull(const ModelName& name, const HubEnvironment& environment, const PullOptions& options) {
  KVASIR_ASSIGN_OR_RETURN(const std::string root, hub_cache(environment));
  const HubCache cache(root);
  PulledModel pulled;
  const auto add = [&](const std::string& path) {
    pulled.files.push_back(cache.snapshot(name.repo, pulled.commit) + "/" + path);
    pulled.path = pulled.files.front();
  };
  if (environment.offline) {
    const std::optional<CachedModel> cached = find_cached(cache, name);
    if (!cached)
      return invalid_argument("{} is not in the cache, and nothing is fetched offline (--offline, HF_HUB_OFFLINE)",
                              to_string(name));
    pulled.commit = cached->commit;
    for (const std::string& path : cached->files) {
      add(path);
      pulled.bytes += size_of(pulled.files.back());
    }
    return pulled;
  }
  KVASIR_ASSIGN_OR_RETURN(const std::string endpoint, hub_endpoint(environment));
  PullOptions own = options;
  KVASIR_ASSIGN_OR_RETURN(own.transfer.token, hub_token(environment));
  own.transfer.token_origin = origin_of(endpoint);
  const Result<Listing> listed = list_files(name, endpoint, own.transfer);
  if (!listed.ok()) {
    const bool of_name =
        listed.status().code() == StatusCode::kNotFound || listed.status().code() == StatusCode::kInvalidArgument;
    return of_name ? listed.status().with_message(to_string(name) + ": " + listed.status().message()) : listed.status();
  }
  const Listing& listing = *listed;
  std::vector<std::string> paths;
  for (const HubFile& file : listing.files) paths.push_back(file.path);
  KVASIR_ASSIGN_OR_RETURN(const std::vector<std::string> chosen, choose_files(paths, name));
  std::vector<HubFile> files;
  for (const std::string& path : chosen) files.push_back(*std::ranges::find(listing.files, path, &HubFile::path));

  pulled.commit = listing.commit;
  for (const HubFile& file : files) pulled.bytes += file.size;
  if (has_all(cache, name, listing.commit, files)) {  // so that a read-only cache suffices
    for (const HubFile& file : files) add(file.path);
    return pulled;
  }
  KVASIR_RETURN_IF_ERROR(cache.prepare(name.repo));
  std::vector<ContentLock> locks;
  KVASIR_RETURN_IF_ERROR(lock_all(cache, name, files, own.transfer, locks));
  KVASIR_RETURN_IF_ERROR(cache.prepare(name.repo));  // another process may have removed the empty folder
  KVASIR_RETURN_IF_ERROR(check_room(cache, name.repo, files));
  for (const HubFile& file : files)
    if (!has(cache, name.repo, file)) pulled.fetched += file.size;
  const std::string address = endpoint + "/" + name.repo + "/resolve/" + listing.commit + "/";
  KVASIR_RETURN_IF_ERROR(fetch_files(cache, name, address, files, own));
  for (const HubFile& file : files) {
    KVASIR_RETURN_IF_ERROR(cache.link(name.repo, listing.commit, file.path, file.oid));
    add(file.path);
  }
  KVASIR_RETURN_IF_ERROR(cache.set_commit(name.repo, name.revision, listing.commit));
  return pulled;
}

}  // namespace kvasir::hub
