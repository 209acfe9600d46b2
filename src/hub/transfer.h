// Downloads over HTTP: redirects, tries that are repeated, several at a time.
// Thread-safety: none; one caller at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kvasir/status.h"

namespace kvasir::hub {

// Status and headers of an answer; names of headers in lower case.
struct Response {
  long status = 0;
  std::map<std::string, std::string, std::less<>> headers;
  std::string header(std::string_view name) const;  // "" where it is missing
};

// Why a try of a transfer ended, and whether another may help.
struct Verdict {
  Status status;
  bool again = false;
};

// One thing to download. Its functions are called from within run_transfers.
class Transfer {
 public:
  explicit Transfer(std::string url) : url_(std::move(url)) {}
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
  virtual ~Transfer() = default;

  const std::string& url() const { return url_; }

  // Before each try: bytes there are already, behind which the answer is to go on; nullopt: nothing is missing.
  virtual Result<std::optional<std::uint64_t>> begin() = 0;
  // ETag of the content that these bytes belong to, for If-Range; "": not known.
  virtual std::string if_range() const { return ""; }
  // A redirect, or the answer with status 200, 206 or 416 before its body.
  virtual Verdict redirected(const Response&) { return {}; }
  virtual Verdict answered(const Response& response) = 0;
  virtual Verdict take(std::string_view bytes) = 0;
  // After the whole body.
  virtual Verdict end() = 0;

 private:
  std::string url_;
};

struct TransferOptions {
  std::string token;         // sent to `token_origin` alone; "": none
  std::string token_origin;  // as origin_of
  std::string user_agent = "kvasir";
  double stall_seconds = 30;                          // without a byte, after which a try ends
  int tries = 5;                                      // in a row that come less than 1 MiB further
  double wait_seconds = 1;                            // before the second try; doubled before each further one
  double longest_wait = 120;                          // seconds that a server may ask for with Retry-After
  std::function<bool()> cancelled;                    // asked some ten times a second; may be empty
  std::function<void(const std::string& line)> note;  // why something is tried again; may be empty
};

// Runs all transfers, at most `at_once` at a time. `tick` (may be empty) is called some ten times a second. The first
// that fails ends all. Errors: kNotFound (404); kInvalidArgument (401, 403: a token is needed); kIo for a server that
// cannot be reached, answers otherwise, or fails on every try; kUnsupported without libcurl; kCancelled; those of
// the transfers.
Status run_transfers(std::span<Transfer* const> transfers, const TransferOptions& options, int at_once,
                     const std::function<void()>& tick);

// Downloads a text of at most `most` bytes. `link` (may be null) receives the header Link.
Result<std::string> fetch_text(const std::string& url, const TransferOptions& options, std::size_t most,
                               std::string* link);

}  // namespace kvasir::hub
