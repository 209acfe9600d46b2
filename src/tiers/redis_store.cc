#include "tiers/redis_store.h"

#include <hiredis/hiredis.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/status.h"

namespace kvasir {
namespace {

using Clock = std::chrono::steady_clock;

struct ReplyEnd {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using Reply = std::unique_ptr<redisReply, ReplyEnd>;

struct ContextEnd {
  void operator()(redisContext* context) const { redisFree(context); }
};

timeval timeval_of(Clock::duration duration) {
  const auto micros =
      std::max<std::int64_t>(std::chrono::duration_cast<std::chrono::microseconds>(duration).count(), 1);
  return {static_cast<time_t>(micros / 1'000'000), static_cast<suseconds_t>(micros % 1'000'000)};
}

// Most bytes of an answer besides a blob.
constexpr std::size_t kMostAnswer = std::size_t{1} << 16;

// A connection, used by one thread. Any error closes it, since a late answer could no longer be assigned.
class Connection {
 public:
  explicit Connection(const RedisOptions* options) : options_(*options) {}

  // Connects, unless connected. Errors: kIo.
  Status open() {
    if (context_ != nullptr) return {};
    context_.reset(redisConnectWithTimeout(options_.host.c_str(), options_.port, timeval_of(options_.connect_timeout)));
    if (context_ == nullptr || context_->err != 0)
      return close("cannot connect", context_ != nullptr ? context_->errstr : "out of memory");
    const int on = 1;
    ::setsockopt(context_->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (options_.password.empty()) return {};
    const Clock::time_point until = Clock::now() + options_.ask_timeout;
    append({"AUTH", options_.password});
    KVASIR_ASSIGN_OR_RETURN(const Reply reply, answer(until, kMostAnswer));
    if (reply->type == REDIS_REPLY_ERROR) return close("the server refuses the password", reply->str);
    return {};
  }

  void append(std::initializer_list<std::string_view> words) {
    std::vector<const char*> data;
    std::vector<std::size_t> sizes;
    for (const std::string_view word : words) {
      data.push_back(word.data());
      sizes.push_back(word.size());
    }
    redisAppendCommandArgv(context_.get(), static_cast<int>(data.size()), data.data(), sizes.data());
  }

  // Sends the appended commands and returns the next answer, of at most `most` bytes. Gives up at `until`. Errors: kIo.
  Result<Reply> answer(Clock::time_point until, std::size_t most) {
    for (int sent = 0; sent == 0;) {
      if (!set_timeout(until)) return late();
      if (redisBufferWrite(context_.get(), &sent) != REDIS_OK) return close("cannot send", context_->errstr);
    }
    const redisReader& reader = *context_->reader;
    for (;;) {
      // The reader stores every element of an array, however many there are. No command of ours is answered by an
      // array.
      const bool begins = reader.ridx == -1 && reader.pos < reader.len;
      if (begins && reader.buf[reader.pos] == '*') return close("the server sends", "an array in place of one value");
      void* reply = nullptr;
      if (redisGetReplyFromReader(context_.get(), &reply) != REDIS_OK)
        return close("the server sends something else", context_->errstr);
      if (reply != nullptr) return Reply(static_cast<redisReply*>(reply));
      if (!set_timeout(until)) return late();
      if (redisBufferRead(context_.get()) != REDIS_OK)
        return errno == EAGAIN ? late() : close("cannot receive", context_->errstr);
      if (reader.len - reader.pos > most + kMostAnswer) return close("the server sends", "more than it was asked for");
    }
  }

  void close() { context_.reset(); }

 private:
  // Returns false if the time is up.
  bool set_timeout(Clock::time_point until) {
    const Clock::duration left = until - Clock::now();
    return left > Clock::duration::zero() && redisSetTimeout(context_.get(), timeval_of(left)) == REDIS_OK;
  }
  Status late() { return close("the server answers", "too late"); }
  Status close(std::string_view what, std::string_view why) {
    Status status = make_status(StatusCode::kIo, "Redis {}:{}: {}: {}", options_.host, options_.port, what, why);
    context_.reset();
    return status;
  }

  const RedisOptions& options_;
  std::unique_ptr<redisContext, ContextEnd> context_;
};

class RedisStore final : public BlobStore {
 public:
  explicit RedisStore(const RedisOptions& options) : options_(options) {}

  Result<std::vector<std::uint64_t>> sizes(std::span<const BlobKey> keys) override {
    std::vector<std::uint64_t> sizes;
    Status status = attempt(reads_, [&]() -> Status {
      const Clock::time_point until = Clock::now() + options_.ask_timeout;
      for (const BlobKey& key : keys) reads_.append({"STRLEN", name_of(key)});
      for (std::size_t i = 0; i < keys.size(); ++i) {
        KVASIR_ASSIGN_OR_RETURN(const Reply reply, reads_.answer(until, kMostAnswer));
        KVASIR_RETURN_IF_ERROR(check(*reply));
        // A value of another type was not written by Kvasir.
        const bool is_size = reply->type == REDIS_REPLY_INTEGER && reply->integer > 0;
        sizes.push_back(is_size ? static_cast<std::uint64_t>(reply->integer) : 0);
      }
      return {};
    });
    if (!status.ok()) return status;
    return sizes;
  }

  Status read(const BlobKey& key, std::span<std::byte> into) override {
    BlobRead one{key, into, {}};
    read_all(std::span(&one, 1), [](std::size_t) {});
    return one.status;
  }

  // Asks for all blobs before it takes the first answer.
  void read_all(std::span<BlobRead> reads, const std::function<void(std::size_t)>& done) override {
    std::size_t next = 0;
    const Status status = attempt(reads_, [&]() -> Status {
      for (const BlobRead& each : reads) reads_.append({"GET", name_of(each.key)});
      for (; next < reads.size(); ++next) {
        BlobRead& each = reads[next];
        KVASIR_ASSIGN_OR_RETURN(const Reply reply,
                                reads_.answer(Clock::now() + options_.blob_timeout, each.into.size()));
        KVASIR_RETURN_IF_ERROR(check(*reply));
        if (reply->type != REDIS_REPLY_STRING) {
          each.status = Status(StatusCode::kNotFound, "Redis does not hold the prefix any more");
        } else if (static_cast<std::size_t>(reply->len) != each.into.size()) {
          each.status = data_loss("it has {} bytes in place of {}", reply->len, each.into.size());
        } else {
          std::memcpy(each.into.data(), reply->str, each.into.size());
        }
        done(next);
      }
      return {};
    });
    for (; next < reads.size(); ++next) {
      reads[next].status = status;
      done(next);
    }
  }

  Status write(const BlobKey& key, std::span<const std::byte> from) override {
    return attempt(writes_, [&]() -> Status {
      const Clock::time_point until = Clock::now() + options_.blob_timeout;
      const std::string ttl = std::to_string(options_.ttl);
      writes_.append({"SET", name_of(key), {reinterpret_cast<const char*>(from.data()), from.size()}, "EX", ttl});
      KVASIR_ASSIGN_OR_RETURN(const Reply reply, writes_.answer(until, kMostAnswer));
      return check(*reply);
    });
  }

  void remove(const BlobKey& key) override {
    static_cast<void>(attempt(writes_, [&]() -> Status {
      writes_.append({"DEL", name_of(key)});
      return writes_.answer(Clock::now() + options_.ask_timeout, kMostAnswer).status();
    }));
  }

  bool answers_at_once() const override { return false; }
  bool usable() const override { return Clock::now().time_since_epoch().count() >= paused_until_.load(); }
  void touch(const BlobKey&) override {}
  BlobUsage usage() const override { return {}; }
  std::string_view name() const override { return "redis"; }

 private:
  std::string name_of(const BlobKey& key) const {
    return options_.prefix + ":" + key.lineage.hex() + ":" + key.salt.hex() + ":" + key.text.hex();
  }

  // Returns the error that the server states, about memory, rights or the type of a value. The connection stays usable.
  static Status check(const redisReply& reply) {
    if (reply.type != REDIS_REPLY_ERROR) return {};
    const std::string_view why(reply.str, static_cast<std::size_t>(reply.len));
    if (why.starts_with("WRONGTYPE")) return {};
    if (why.starts_with("NOAUTH"))
      return Status(StatusCode::kIo, "the Redis server wants a password, and none is given");
    return make_status(why.starts_with("OOM") ? StatusCode::kResourceExhausted : StatusCode::kIo,
                       "the Redis server says: {}", why);
  }

  // Runs `work` on an open connection; after an error the server is not asked for a while.
  template <class Work>
  Status attempt(Connection& connection, const Work& work) {
    if (!usable()) return Status(StatusCode::kIo, "Redis did not answer, and is left alone for a while");
    Status status = connection.open();
    if (status.ok()) status = work();
    const std::lock_guard lock(mutex_);
    if (status.ok()) {
      pause_ = {};
      return status;
    }
    connection.close();
    pause_ = std::clamp<Clock::duration>(pause_ * 2, options_.first_pause, options_.longest_pause);
    paused_until_ = (Clock::now() + pause_).time_since_epoch().count();
    return status;
  }

  const RedisOptions options_;
  Connection reads_{&options_};
  Connection writes_{&options_};
  std::mutex mutex_;
  Clock::duration pause_{};  // after the last failure; guarded by mutex_
  std::atomic<Clock::rep> paused_until_{0};
};

}  // namespace

Status parse_redis_address(const std::string& text, RedisOptions* options) {
  const std::size_t colon = text.rfind(':');
  const auto wrong = [&] {
    return invalid_argument("'{}' is no address of a Redis server; give HOST:PORT, for example 127.0.0.1:6379", text);
  };
  if (colon == std::string::npos || colon == 0) return wrong();
  std::string host = text.substr(0, colon);
  const char* end = text.data() + text.size();
  int port = 0;
  const auto [at, error] = std::from_chars(text.data() + colon + 1, end, port);
  if (error != std::errc() || at != end || port < 1 || port > 65535) return wrong();
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (host.empty() || host.find_first_of("[]/@ ") != std::string::npos) return wrong();
  options->host = std::move(host);
  options->port = port;
  return {};
}

std::unique_ptr<BlobStore> make_redis_store(const RedisOptions& options) {
  return std::make_unique<RedisStore>(options);
}

}  // namespace kvasir
