#include "hub/file_transfer.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"

namespace kvasir::hub {
namespace {

std::optional<std::uint64_t> read_number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Returns whether a Content-Range continues at `offset` in content of `size` bytes.
bool continues_at(std::string_view range, std::uint64_t offset, std::uint64_t size) {
  const std::size_t dash = range.find('-');
  const std::size_t slash = range.find('/');
  if (!range.starts_with("bytes ") || dash == std::string_view::npos || slash == std::string_view::npos || slash < dash)
    return false;
  const std::string_view total = range.substr(slash + 1);
  return read_number(range.substr(6, dash - 6)) == offset && (total == "*" || read_number(total) == size);
}

}  // namespace

FileTransfer::FileTransfer(std::string url, HubFile file, std::string partial, std::function<bool()> cancelled)
    : Transfer(std::move(url)),
      file_(std::move(file)),
      partial_(std::move(partial)),
      cancelled_(std::move(cancelled)) {}

FileTransfer::~FileTransfer() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status FileTransfer::failed(const char* what) const {
  const int error = errno;
  if (error != ENOSPC && error != EDQUOT && error != EFBIG) return errno_status(what, partial_);
  struct statvfs disk {};
  const std::string place =
      ::statvfs(partial_.c_str(), &disk) == 0
          ? fmt::format("; {} are free", static_cast<std::uint64_t>(disk.f_bavail) * disk.f_frsize)
          : "";
  return exhausted("cannot write '{}': {}; {} more bytes are needed{}; make room and run the same command again",
                   partial_, std::strerror(error), file_.size - written_, place);
}

Status FileTransfer::read_what_is_there() {
  descriptor_ = ::open(partial_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (descriptor_ < 0) return failed("create");
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) return failed("read");
  if (!S_ISREG(status.st_mode)) return invalid_argument("'{}' is no regular file; remove it", partial_);
  if (static_cast<std::uint64_t>(status.st_size) > file_.size) return restart();
  hash_.emplace(file_.is_sha256, file_.size);
  std::vector<char> buffer(1 << 20);
  while (true) {
    if (cancelled_ && cancelled_())
      return Status(StatusCode::kCancelled, "stopped; run the same command again to go on");
    const ssize_t got = ::read(descriptor_, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failed("read");
    if (got == 0) return {};
    hash_->add({buffer.data(), static_cast<std::size_t>(got)});
    written_ += static_cast<std::uint64_t>(got);
  }
}

Status FileTransfer::restart() {
  if (::ftruncate(descriptor_, 0) != 0 || ::lseek(descriptor_, 0, SEEK_SET) != 0) return failed("write");
  hash_.emplace(file_.is_sha256, file_.size);
  written_ = 0;
  etag_.clear();
  return {};
}

Result<std::optional<std::uint64_t>> FileTransfer::begin() {
  if (descriptor_ < 0) KVASIR_RETURN_IF_ERROR(read_what_is_there());
  if (written_ == file_.size) return std::optional<std::uint64_t>();
  return std::optional<std::uint64_t>(written_);
}

Verdict FileTransfer::check_identity(const Response& response) const {
  const std::string etag = plain_etag(response.header("x-linked-etag"));
  const std::string size = response.header("x-linked-size");
  if ((etag.empty() || !file_.is_sha256 || etag == file_.oid) && (size.empty() || read_number(size) == file_.size))
    return {};
  return {make_status(StatusCode::kIo, "'{}' changed on the hub while it was fetched; run the same command again",
                      file_.path)};
}

Verdict FileTransfer::answered(const Response& response) {
  if (const Verdict verdict = check_identity(response); !verdict.status.ok()) return verdict;
  const auto from_the_start = [&](const char* why) -> Verdict {
    if (Status status = restart(); !status.ok()) return {std::move(status)};
    return {make_status(StatusCode::kIo, "{} for '{}'", why, file_.path), true};
  };
  if (response.status == 416) return from_the_start("the server refuses to go on");
  const std::optional<std::uint64_t> length = read_number(response.header("content-length"));
  if (response.status == 206) {
    if (!continues_at(response.header("content-range"), written_, file_.size))
      return from_the_start("the server goes on at another place than was asked");
  } else {
    if (length && *length != file_.size)
      return {make_status(StatusCode::kIo, "the server has {} bytes of '{}', and the hub lists {}; try again later",
                          *length, file_.path, file_.size)};
    if (written_ > 0)
      if (Status status = restart(); !status.ok()) return {std::move(status)};
  }
  const std::string etag = response.header("etag");
  etag_ = etag.starts_with("W/") ? "" : etag;  // a weak ETag does not promise the same bytes
  return {};
}

Verdict FileTransfer::take(std::string_view bytes) {
  if (bytes.size() > file_.size - written_) {
    if (Status status = restart(); !status.ok()) return {std::move(status)};
    return {make_status(StatusCode::kIo, "the server sends more than the {} bytes of '{}'", file_.size, file_.path),
            true};
  }
  while (!bytes.empty()) {
    const ssize_t done = ::write(descriptor_, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return {failed("write")};
    hash_->add(bytes.substr(0, static_cast<std::size_t>(done)));
    written_ += static_cast<std::uint64_t>(done);
    bytes.remove_prefix(static_cast<std::size_t>(done));
  }
  return {};
}

Verdict FileTransfer::end() {
  if (written_ < file_.size)
    return {
        make_status(StatusCode::kIo, "the server ended '{}' after {} of {} bytes", file_.path, written_, file_.size),
        true};
  if (hash_->hex() != file_.oid) {
    // Tries once more from the start: the bytes of earlier tries may have been wrong.
    if (Status status = restart(); !status.ok()) return {std::move(status)};
    if (++mismatches_ == 1)
      return {make_status(StatusCode::kIo, "the content of '{}' does not have the hash that the hub lists", file_.path),
              true};
    ::unlink(partial_.c_str());
    return {
        data_loss("the content of '{}' does not have the hash that the hub lists, twice; nothing is kept", file_.path)};
  }
  if (::fsync(descriptor_) != 0) return {failed("write")};
  return {};
}

}  // namespace kvasir::hub
