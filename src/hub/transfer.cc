#include "hub/transfer.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "hub/curl_library.h"
#include "hub/hub_api.h"

namespace kvasir::hub {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMostRedirects = 8;
constexpr std::size_t kMostHeaders = 200;
constexpr int kPollMilliseconds = 100;
constexpr std::uint64_t kProgress = 1 << 20;
constexpr std::uint64_t kMostRefusal = 1 << 20;  // bytes of an answer without content

Clock::duration in_seconds(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// Returns scheme://host:port of an address, for messages.
std::string site_of(const std::string& url) {
  const std::string origin = origin_of(url);
  return origin.empty() ? url.substr(0, 100) : origin;
}

// The state of one transfer over its tries.
class Run {
 public:
  Run(Transfer& transfer, const TransferOptions& options, const CurlLibrary& curl)
      : transfer_(transfer), options_(options), curl_(curl), url_(transfer.url()) {}
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  ~Run() { drop(); }

  enum class State { kWaits, kRuns, kDone };
  State state() const { return state_; }
  Clock::time_point due() const { return due_; }
  CURL* handle() const { return handle_; }
  // Adds time spent waiting for the network. Time in which this process hashes does not count: the server is not
  // silent.
  void listened(Clock::duration time) { silent_ += time; }
  bool stalled() const { return silent_ > in_seconds(options_.stall_seconds); }

  // Starts a try. Sets kDone without a request if nothing is missing.
  Status start() {
    KVASIR_ASSIGN_OR_RETURN(const std::optional<std::uint64_t> offset, transfer_.begin());
    if (!offset) {
      const Verdict verdict = transfer_.end();
      return verdict.status.ok() ? (state_ = State::kDone, Status()) : judge(verdict);
    }
    offset_ = *offset;
    if (redirects_ == 0) url_ = transfer_.url();
    handle_ = curl_.init();
    if (handle_ == nullptr) return make_status(StatusCode::kIo, "libcurl cannot start a request");
    response_ = {};
    verdict_ = {};
    asked_ = false;
    refused_ = 0;
    const auto add = [&](const std::string& line) { headers_ = curl_.slist_append(headers_, line.c_str()); };
    if (!options_.token.empty() && origin_of(url_) == options_.token_origin && !options_.token_origin.empty())
      add("Authorization: Bearer " + options_.token);
    if (offset_ > 0) add(fmt::format("Range: bytes={}-", offset_));
    if (offset_ > 0 && !transfer_.if_range().empty()) add("If-Range: " + transfer_.if_range());
    curl_.setopt(handle_, CURLOPT_URL, url_.c_str());
    curl_.setopt(handle_, CURLOPT_HTTPHEADER, headers_);
    curl_.setopt(handle_, CURLOPT_USERAGENT, options_.user_agent.c_str());
    curl_.setopt(handle_, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_.setopt(handle_, CURLOPT_FOLLOWLOCATION, 0L);
    curl_.setopt(handle_, CURLOPT_NOSIGNAL, 1L);
    curl_.setopt(handle_, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    curl_.setopt(handle_, CURLOPT_BUFFERSIZE, 256L * 1024);
    curl_.setopt(handle_, CURLOPT_PRIVATE, this);
    curl_.setopt(handle_, CURLOPT_HEADERFUNCTION, &Run::on_header);
    curl_.setopt(handle_, CURLOPT_HEADERDATA, this);
    curl_.setopt(handle_, CURLOPT_WRITEFUNCTION, &Run::on_body);
    curl_.setopt(handle_, CURLOPT_WRITEDATA, this);
    silent_ = {};
    state_ = State::kRuns;
    return {};
  }

  // Ends a try that was stopped from outside. REQUIRES: the handle is not in a curl_multi.
  Status stall() {
    drop();
    return judge(
        {make_status(StatusCode::kIo, "{} sent nothing for {:g} s", site_of(url_), options_.stall_seconds), true});
  }

  // Ends a try that libcurl ended. REQUIRES: as stall.
  Status finish(CURLcode code) {
    long retry_after = 0;
    std::string next;
    char* location = nullptr;
    curl_off_t wait = 0;
    if (curl_.getinfo(handle_, CURLINFO_RETRY_AFTER, &wait) == CURLE_OK) retry_after = static_cast<long>(wait);
    if (curl_.getinfo(handle_, CURLINFO_REDIRECT_URL, &location) == CURLE_OK && location != nullptr) next = location;
    drop();
    if (!verdict_.status.ok()) return judge(verdict_);
    if (code != CURLE_OK && refused_ <= kMostRefusal) return judge(curl_verdict(code));
    reached_ = true;
    if (response_.status >= 300 && response_.status < 400) return redirect(next);
    if (!is_content()) return judge(refusal(), static_cast<double>(retry_after));
    if (const Verdict verdict = ask(); !verdict.status.ok()) return judge(verdict);  // an empty body
    if (const Verdict verdict = transfer_.end(); !verdict.status.ok()) return judge(verdict);
    state_ = State::kDone;
    return {};
  }

 private:
  bool is_content() const { return response_.status == 200 || response_.status == 206 || response_.status == 416; }

  Verdict ask() {
    if (std::exchange(asked_, true)) return {};
    return transfer_.answered(response_);
  }

  static std::size_t on_header(char* data, std::size_t size, std::size_t count, void* self) {
    Run& run = *static_cast<Run*>(self);
    run.silent_ = {};
    std::string_view line(data, size * count);
    while (line.ends_with('\n') || line.ends_with('\r')) line.remove_suffix(1);
    if (line.starts_with("HTTP/")) {
      run.response_ = {};
      const std::size_t space = line.find(' ');
      if (space != std::string_view::npos)
        for (const char c : line.substr(space + 1, 3))
          if (c >= '0' && c <= '9') run.response_.status = run.response_.status * 10 + (c - '0');
    } else if (const std::size_t colon = line.find(':');
               colon != std::string_view::npos && run.response_.headers.size() < kMostHeaders) {
      std::string name(line.substr(0, colon));
      for (char& c : name)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
      std::string_view value = line.substr(colon + 1);
      while (value.starts_with(' ') || value.starts_with('\t')) value.remove_prefix(1);
      run.response_.headers[name] = value;
    }
    return size * count;
  }

  static std::size_t on_body(char* data, std::size_t size, std::size_t count, void* self) {
    Run& run = *static_cast<Run*>(self);
    const std::string_view bytes(data, size * count);
    run.silent_ = {};
    if (!run.is_content()) {
      run.refused_ += bytes.size();
      return run.refused_ <= kMostRefusal ? bytes.size() : 0;
    }
    run.verdict_ = run.ask();
    if (run.verdict_.status.ok()) run.verdict_ = run.transfer_.take(bytes);
    run.brought_ += bytes.size();
    return run.verdict_.status.ok() ? bytes.size() : 0;  // 0 ends the transfer
  }

  void drop() {
    if (handle_ != nullptr) curl_.cleanup(handle_);
    if (headers_ != nullptr) curl_.slist_free_all(headers_);
    handle_ = nullptr;
    headers_ = nullptr;
  }

  Status redirect(const std::string& next) {
    if (const Verdict verdict = transfer_.redirected(response_); !verdict.status.ok()) return judge(verdict);
    if (origin_of(next).empty())
      return make_status(StatusCode::kIo, "{} redirects to '{}', which is no http address; nothing is fetched",
                         site_of(url_), next.substr(0, 100));
    if (origin_of(url_).starts_with("https:") && !origin_of(next).starts_with("https:"))
      return make_status(StatusCode::kIo, "{} redirects from https to http; nothing is fetched", site_of(url_));
    if (++redirects_ > kMostRedirects)
      return make_status(StatusCode::kIo, "{} redirects more than {} times; try again later", site_of(transfer_.url()),
                         kMostRedirects);
    url_ = next;
    due_ = Clock::now();
    state_ = State::kWaits;
    return {};
  }

  Verdict curl_verdict(CURLcode code) const {
    const std::string site = site_of(url_);
    const char* why = curl_.strerror(code);
    switch (code) {
      case CURLE_COULDNT_RESOLVE_HOST:
      case CURLE_COULDNT_RESOLVE_PROXY:
      case CURLE_COULDNT_CONNECT: return {make_status(StatusCode::kIo, "cannot reach {}: {}", site, why), reached_};
      case CURLE_PEER_FAILED_VERIFICATION:
      case CURLE_SSL_CACERT_BADFILE:
        return {
            make_status(StatusCode::kIo, "cannot trust {}: {}; is the package ca-certificates installed?", site, why)};
      case CURLE_UNSUPPORTED_PROTOCOL:
      case CURLE_URL_MALFORMAT:
      case CURLE_OUT_OF_MEMORY: return {make_status(StatusCode::kIo, "cannot fetch from {}: {}", site, why)};
      default: return {make_status(StatusCode::kIo, "the connection to {} broke: {}", site, why), true};
    }
  }

  // Returns the verdict on an answer without content.
  Verdict refusal() const {
    const std::string site = site_of(url_);
    const std::string said = response_.header("x-error-message").substr(0, 200);
    const std::string reason = said.empty() ? "" : " (" + said + ")";
    const bool own = origin_of(url_) == options_.token_origin;
    switch (response_.status) {
      case 401:
      case 403:
        return {invalid_argument("{} refuses access{}: {}", site, reason,
                                 !own ? "try again later"
                                 : options_.token.empty()
                                     ? "check the name; for a private or gated model accept its terms "
                                       "on its page, and set HF_TOKEN"
                                     : "the token of HF_TOKEN does not permit it")};
      case 404:
        return {make_status(StatusCode::kNotFound, "{} has no such repository, revision or file{}", site, reason)};
      case 408:
      case 429:
      case 500:
      case 502:
      case 503:
      case 504: return {make_status(StatusCode::kIo, "{} answers with status {}", site, response_.status), true};
      default: return {make_status(StatusCode::kIo, "{} answers with status {}{}", site, response_.status, reason)};
    }
  }

  // Plans another try, or returns why there is none.
  Status judge(const Verdict& verdict, double retry_after = 0) {
    if (!verdict.again) return verdict.status;
    if (offset_ + brought_ >= furthest_ + kProgress) {
      failed_ = 0;
      furthest_ = offset_ + brought_;
    }
    brought_ = 0;
    redirects_ = 0;
    if (retry_after > options_.longest_wait)
      return verdict.status.with_message(
          fmt::format("{}, and asks for {:g} s; try again then", verdict.status.message(), retry_after));
    if (++failed_ >= options_.tries)
      return verdict.status.with_message(
          fmt::format("{} ({} tries); run the same command again to go on", verdict.status.message(), options_.tries));
    double wait = options_.wait_seconds;
    for (int i = 1; i < failed_; ++i) wait = std::min(wait * 2, options_.longest_wait);
    wait = std::max(wait, retry_after);
    if (options_.note) options_.note(fmt::format("{}; trying again in {:g} s", verdict.status.message(), wait));
    due_ = Clock::now() + in_seconds(wait);
    state_ = State::kWaits;
    return {};
  }

  Transfer& transfer_;
  const TransferOptions& options_;
  const CurlLibrary& curl_;
  std::string url_;  // of this request: the transfer's, or the redirect's target
  State state_ = State::kWaits;
  Clock::time_point due_ = Clock::now();
  Clock::duration silent_{};  // since the last byte
  CURL* handle_ = nullptr;
  curl_slist* headers_ = nullptr;
  Response response_;
  Verdict verdict_;            // of the transfer, within callbacks
  bool asked_ = false;         // whether transfer_.answered was called
  bool reached_ = false;       // whether a server has answered
  std::uint64_t refused_ = 0;  // bytes of an answer without content
  std::uint64_t offset_ = 0;
  std::uint64_t brought_ = 0;   // bytes received in this try
  std::uint64_t furthest_ = 0;  // offset that the best try reached
  int failed_ = 0;              // tries in a row without enough progress
  int redirects_ = 0;           // of this try
};

// Owns a curl_multi and removes its handles in time.
class Multi {
 public:
  explicit Multi(const CurlLibrary& curl) : curl_(curl), multi_(curl.multi_init()) {}
  Multi(const Multi&) = delete;
  Multi& operator=(const Multi&) = delete;
  ~Multi() {
    for (CURL* handle : std::vector(handles_)) remove(handle);
    if (multi_ != nullptr) curl_.multi_cleanup(multi_);
  }
  void add(CURL* handle) {
    handles_.push_back(handle);
    curl_.multi_add_handle(multi_, handle);
  }
  void remove(CURL* handle) {
    curl_.multi_remove_handle(multi_, handle);
    std::erase(handles_, handle);
  }
  int running() const { return static_cast<int>(handles_.size()); }
  CURLM* get() const { return multi_; }

 private:
  const CurlLibrary& curl_;
  CURLM* multi_;
  std::vector<CURL*> handles_;
};

class TextTransfer : public Transfer {
 public:
  TextTransfer(std::string url, std::size_t most) : Transfer(std::move(url)), most_(most) {}
  Result<std::optional<std::uint64_t>> begin() override {
    text.clear();
    return std::optional<std::uint64_t>(0);
  }
  Verdict answered(const Response& response) override {
    link = response.header("link");
    if (response.status == 200) return {};
    return {make_status(StatusCode::kIo, "{} answers with status {}", site_of(url()), response.status)};
  }
  Verdict take(std::string_view bytes) override {
    if (bytes.size() > most_ - text.size())
      return {data_loss("the hub's answer is malformed: it is longer than {} bytes", most_)};
    text.append(bytes);
    return {};
  }
  Verdict end() override { return {}; }

  std::string text;
  std::string link;

 private:
  std::size_t most_;
};

}  // namespace

std::string Response::header(std::string_view name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

Status run_transfers(std::span<Transfer* const> transfers, const TransferOptions& options, int at_once,
                     const std::function<void()>& tick) {
  KVASIR_ASSIGN_OR_RETURN(const CurlLibrary* const curl, CurlLibrary::load());
  std::vector<std::unique_ptr<Run>> runs;
  for (Transfer* transfer : transfers) runs.push_back(std::make_unique<Run>(*transfer, options, *curl));
  Multi multi(*curl);  // destroyed before the runs, whose handles it refers to
  if (multi.get() == nullptr) return make_status(StatusCode::kIo, "libcurl cannot start");
  const auto is_done = [](const auto& run) { return run->state() == Run::State::kDone; };
  while (!std::ranges::all_of(runs, is_done)) {
    if (options.cancelled && options.cancelled())
      return Status(StatusCode::kCancelled, "stopped; run the same command again to go on");
    const Clock::time_point now = Clock::now();
    for (const auto& run : runs) {
      if (run->state() == Run::State::kRuns && run->stalled()) {
        multi.remove(run->handle());
        KVASIR_RETURN_IF_ERROR(run->stall());
      }
      if (run->state() != Run::State::kWaits || run->due() > now || multi.running() >= at_once) continue;
      KVASIR_RETURN_IF_ERROR(run->start());
      if (run->state() == Run::State::kRuns) multi.add(run->handle());
    }
    int running = 0;
    curl->multi_perform(multi.get(), &running);
    int queued = 0;
    while (const CURLMsg* message = curl->multi_info_read(multi.get(), &queued)) {
      if (message->msg != CURLMSG_DONE) continue;
      const CURLcode code = message->data.result;
      CURL* const handle = message->easy_handle;
      multi.remove(handle);
      const auto run = std::ranges::find_if(runs, [&](const auto& other) { return other->handle() == handle; });
      KVASIR_RETURN_IF_ERROR((*run)->finish(code));
    }
    if (tick) tick();
    const bool starts = std::ranges::any_of(runs, [&](const auto& run) {
      return run->state() == Run::State::kWaits && run->due() <= Clock::now() && multi.running() < at_once;
    });
    if (starts || std::ranges::all_of(runs, is_done)) continue;
    const Clock::time_point before = Clock::now();
    curl->multi_poll(multi.get(), nullptr, 0, kPollMilliseconds, nullptr);
    // Bounded, since the process may have been suspended meanwhile.
    const Clock::duration waited =
        std::min<Clock::duration>(Clock::now() - before, std::chrono::milliseconds(2 * kPollMilliseconds));
    for (const auto& run : runs) run->listened(waited);
  }
  return {};
}

Result<std::string> fetch_text(const std::string& url, const TransferOptions& options, std::size_t most,
                               std::string* link) {
  TextTransfer transfer(url, most);
  Transfer* const one = &transfer;
  KVASIR_RETURN_IF_ERROR(run_transfers(std::span(&one, 1), options, 1, {}));
  if (link != nullptr) *link = transfer.link;
  return std::move(transfer.text);
}

}  // namespace kvasir::hub
