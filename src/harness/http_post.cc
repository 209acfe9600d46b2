#include "harness/http_post.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/status.h"
#include "hub/curl_library.h"

namespace kvasir {
namespace {

constexpr std::size_t kMostBody = std::size_t{256} << 20;
constexpr double kMostSeconds = 1e6;  // in milliseconds a long holds more

// One request under way. libcurl keeps pointers to its texts.
struct Request {
  std::size_t id = 0;
  std::string url;
  std::string body;
  std::string answer;
  bool too_large = false;
};

std::size_t take(char* bytes, std::size_t size, std::size_t count, void* request) {
  auto& to = *static_cast<Request*>(request);
  if (to.answer.size() + size * count > kMostBody) {
    to.too_large = true;
    return 0;
  }
  to.answer.append(bytes, size * count);
  return size * count;
}

class CurlPost : public HttpPost {
 public:
  CurlPost(const hub::CurlLibrary* curl, const std::vector<std::string>& headers, double timeout_seconds)
      : curl_(*curl), multi_(curl_.multi_init()), timeout_seconds_(std::min(timeout_seconds, kMostSeconds)) {
    for (const std::string& header : headers) headers_ = curl_.slist_append(headers_, header.c_str());
  }
  CurlPost(const CurlPost&) = delete;
  CurlPost& operator=(const CurlPost&) = delete;
  ~CurlPost() override {
    for (const auto& [handle, request] : requests_) end(handle);
    curl_.multi_cleanup(multi_);
    curl_.slist_free_all(headers_);
  }

  void begin(std::size_t id, const std::string& url, std::string body) override {
    auto request = std::make_unique<Request>();
    request->id = id;
    request->url = url;
    request->body = std::move(body);
    CURL* handle = curl_.init();
    curl_.setopt(handle, CURLOPT_URL, request->url.c_str());
    curl_.setopt(handle, CURLOPT_HTTPHEADER, headers_);
    curl_.setopt(handle, CURLOPT_POSTFIELDS, request->body.c_str());
    curl_.setopt(handle, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request->body.size()));
    curl_.setopt(handle, CURLOPT_WRITEFUNCTION, take);
    curl_.setopt(handle, CURLOPT_WRITEDATA, request.get());
    const long milliseconds = static_cast<long>(timeout_seconds_ * 1000);
    curl_.setopt(handle, CURLOPT_TIMEOUT_MS, milliseconds);
    curl_.setopt(handle, CURLOPT_CONNECTTIMEOUT_MS, milliseconds);
    curl_.setopt(handle, CURLOPT_NOSIGNAL, 1L);
    curl_.multi_add_handle(multi_, handle);
    requests_.emplace(handle, std::move(request));
  }

  std::size_t running() const override { return requests_.size(); }

  void wait(const std::function<void(std::size_t, HttpAnswer)>& on_answer) override {
    int running = 0;
    curl_.multi_perform(multi_, &running);
    curl_.multi_poll(multi_, nullptr, 0, 100, nullptr);
    curl_.multi_perform(multi_, &running);
    int left = 0;
    while (const CURLMsg* message = curl_.multi_info_read(multi_, &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      CURL* const handle = message->easy_handle;
      const CURLcode result = message->data.result;
      const auto found = requests_.find(handle);
      const std::unique_ptr<Request> request = std::move(found->second);
      HttpAnswer answer;
      curl_.getinfo(handle, CURLINFO_RESPONSE_CODE, &answer.code);
      curl_.getinfo(handle, CURLINFO_TOTAL_TIME, &answer.seconds);
      answer.body = std::move(request->answer);
      curl_off_t retry_after = 0;
      if (curl_.getinfo(handle, CURLINFO_RETRY_AFTER, &retry_after) == CURLE_OK)
        answer.retry_after = static_cast<double>(retry_after);
      answer.timed_out = result == CURLE_OPERATION_TIMEDOUT;
      if (answer.timed_out)
        answer.status = make_status(StatusCode::kIo, "{} did not answer within {} s; allow more with --timeout SECONDS",
                                    shown_url(request->url), timeout_seconds_);
      else if (result != CURLE_OK)
        answer.status = make_status(StatusCode::kIo, "{}: {}", shown_url(request->url),
                                    request->too_large ? "the answer is too long" : curl_.strerror(result));
      requests_.erase(found);
      end(handle);
      on_answer(request->id, std::move(answer));
    }
  }

 private:
  void end(CURL* handle) {
    curl_.multi_remove_handle(multi_, handle);
    curl_.cleanup(handle);
  }

  const hub::CurlLibrary& curl_;
  CURLM* multi_;
  curl_slist* headers_ = nullptr;
  double timeout_seconds_;
  std::map<CURL*, std::unique_ptr<Request>> requests_;
};

}  // namespace

std::string shown_url(const std::string& url) {
  const std::size_t scheme = url.find("://");
  if (scheme == std::string::npos) return url;
  const std::size_t begin = scheme + 3, at = url.find('@', begin);
  return at == std::string::npos || at > url.find('/', begin) ? url : url.substr(0, begin) + url.substr(at + 1);
}

Result<std::unique_ptr<HttpPost>> HttpPost::create(std::vector<std::string> headers, double timeout_seconds) {
  KVASIR_ASSIGN_OR_RETURN(const hub::CurlLibrary* curl, hub::CurlLibrary::load());
  return std::unique_ptr<HttpPost>(std::make_unique<CurlPost>(curl, headers, timeout_seconds));
}

}  // namespace kvasir
