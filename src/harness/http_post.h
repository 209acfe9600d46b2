// Sends requests to one server, several at a time.
// Thread-safety: one call at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kvasir/status.h"

namespace kvasir {

struct HttpAnswer {
  Status status;           // kIo: the server could not be reached, or did not answer in time; names the URL
  bool timed_out = false;  // of these, the latter
  long code = 0;           // of HTTP
  std::string body;
  double seconds = 0;
  double retry_after = 0;  // seconds that the server asks to wait (Retry-After, as seconds or as a date); 0: not said
};

// Returns a URL without the user's name and password.
std::string shown_url(const std::string& url);

class HttpPost {
 public:
  // `timeout_seconds`: most that a request may take, connecting included. Errors: kUnsupported without libcurl.
  static Result<std::unique_ptr<HttpPost>> create(std::vector<std::string> headers, double timeout_seconds);
  virtual ~HttpPost() = default;

  // Begins a request. `id` comes back with its answer. Messages name `url` without the name and password in it.
  virtual void begin(std::size_t id, const std::string& url, std::string body) = 0;
  virtual std::size_t running() const = 0;
  // Waits for at most a tenth of a second, and calls `on_answer` for each request that has ended since the last call.
  virtual void wait(const std::function<void(std::size_t id, HttpAnswer answer)>& on_answer) = 0;
};

}  // namespace kvasir
