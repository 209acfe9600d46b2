// Downloads over HTTP: follows redirects, retries, and runs several transfers at a time.
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

// Status and headers of an answer; header names in lower case.
struct Response {
  long status = 0;
  std::map<std::string, std::string, std::less<>> headers;
  std::string header(std::string_view name) const;  // "" if it is missing
};

// Why a try ended, and whether another may help.
struct Verdict {
  Status status;
  bool again = false;
};

// One download. run_transfers calls its functions.
class Transfer {
 public:
  explicit Transfer(std::string url) : url_(std::move(url)) {}
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
  virtual ~Transfer() = default;

  const std::string& url() const { return url_; }

  // Called before each try. Returns the bytes already present, where the answer is to continue; nullopt if none is
  // missing.
  virtual Result<std::optional<std::uint64_t>> begin() = 0;
  // Returns the ETag of the content that these bytes belong to, for If-Range; "" if unknown.
  virtual std::string if_range() const { return ""; }
  // Called for a redirect, and for an answer with status 200, 206 or 416 before its body.
  virtual Verdict redirected(const Response&) { return {}; }
  virtual Verdict answered(const Response& response) = 0;
  virtual Verdict take(std::string_view bytes) = 0;
  // Called after the whole body.
  virtual Verdict end() = 0;

 private:
  std::string url_;
};

struct TransferOptions {
  std::string token;         // sent only to `token_origin`; "": none
  std::string token_origin;  // as origin_of
  std::string user_agent = "kvasir";
  double stall_seconds = 30;                          // silence after which a try ends
  int tries = 5;                                      // in a row that each bring less than 1 MiB of progress
  double wait_seconds = 1;                            // before the second try; doubled before each later one
  double longest_wait = 120;                          // most seconds that a server may ask for with Retry-After
  std::function<bool()> cancelled;                    // called some ten times a second; may be empty
  std::function<void(const std::string& line)> note;  // reports why something is tried again; may be empty
};

// Runs all transfers, at most `at_once` at a time. `tick` (may be empty) is called some ten times a second. The first
// failure ends all. Errors: kNotFound (404); kInvalidArgument (401, 403: a token is needed); kIo for a server that
// cannot be reached, gives other answers, or fails on every try; kUnsupported without libcurl; kCancelled; those of the
// transfers.
Status run_transfers(std::span<Transfer* const> transfers, const TransferOptions& options, int at_once,
                     const std::function<void()>& tick);

// Downloads a text of at most `most` bytes. `link` (may be null) receives the Link header.
Result<std::string> fetch_text(const std::string& url, const TransferOptions& options, std::size_t most,
                               std::string* link);

}  // namespace kvasir::hub
