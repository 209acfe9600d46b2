#include "server/kv_events/kv_events.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <deque>
#include <mutex>
#include <new>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/status.h"
#include "kvasir/engine.h"
#include "server/kv_events/zmq_library.h"

namespace kvasir::server {
namespace {

using Clock = std::chrono::steady_clock;
using Payload = std::shared_ptr<const std::string>;

constexpr std::uint64_t kEnd = ~std::uint64_t{0};  // number of the last frame of a replay: -1
constexpr int kUnsent = 100000;                    // messages that wait for one subscriber; more are lost to it
constexpr int kLinger = 200;                       // ms for unsent messages at the end
constexpr std::int64_t kLongestRequest = 4096;     // bytes of a frame that a client of the replay socket sends

const ZmqLibrary* zmq = nullptr;  // set once, before any socket is made

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

struct CloseSocket {
  void operator()(void* socket) const { zmq->close(socket); }
};
struct EndContext {
  void operator()(void* context) const { zmq->ctx_term(context); }
};
using Socket = std::unique_ptr<void, CloseSocket>;

void set(const Socket& socket, int option, int value) {
  zmq->setsockopt(socket.get(), option, &value, sizeof(value));
}

std::array<char, 8> big_endian(std::uint64_t number) {
  std::array<char, 8> bytes{};
  for (int i = 0; i < 8; ++i) bytes[static_cast<std::size_t>(i)] = static_cast<char>(number >> (8 * (7 - i)));
  return bytes;
}

std::uint64_t from_big_endian(std::string_view bytes) {
  std::uint64_t number = 0;
  for (const char byte : bytes) number = number << 8 | static_cast<unsigned char>(byte);
  return number;
}

bool send(const Socket& socket, std::string_view frame, int more = ZMQ_SNDMORE) {
  return zmq->send(socket.get(), frame.data(), frame.size(), ZMQ_DONTWAIT | more) >= 0;
}

// Sends the last frame of a message; all subscribers and the kept batches share its bytes.
bool send_shared(const Socket& socket, const Payload& payload) {
  zmq_msg_t message;
  auto* const owner = new Payload(payload);
  const auto drop = [](void*, void* hint) { delete static_cast<Payload*>(hint); };
  if (zmq->msg_init_data(&message, const_cast<char*>(payload->data()), payload->size(), drop, owner) != 0) {
    delete owner;
    return false;
  }
  if (zmq->msg_send(&message, socket.get(), ZMQ_DONTWAIT) >= 0) return true;
  zmq->msg_close(&message);
  return false;
}

// Receives a whole message. Returns false if there is none.
bool receive(const Socket& socket, std::vector<std::string>& frames) {
  frames.clear();
  for (bool more = true; more;) {
    zmq_msg_t message;
    zmq->msg_init(&message);
    if (zmq->msg_recv(&message, socket.get(), ZMQ_DONTWAIT) < 0) {
      zmq->msg_close(&message);
      return false;
    }
    // No valid request has more frames: further ones are dropped.
    if (frames.size() < 4)
      frames.emplace_back(static_cast<const char*>(zmq->msg_data(&message)), zmq->msg_size(&message));
    more = zmq->msg_more(&message) != 0;
    zmq->msg_close(&message);
  }
  return true;
}

// Checks the port's range: libzmq takes a port modulo 65,536.
Status check_port(const std::string& endpoint) {
  if (!endpoint.starts_with("tcp://")) return {};
  const std::string_view port = std::string_view(endpoint).substr(endpoint.rfind(':') + 1);
  if (port == "*" || port == "!") return {};
  std::uint16_t number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (error == std::errc() && end == port.data() + port.size()) return {};
  return invalid_argument("'{}' has no port from 0 to 65535 at its end; give an address like tcp://127.0.0.1:5557",
                          endpoint);
}

// Checks that enough descriptors are free: without them libzmq aborts the process.
Status check_descriptors() {
  constexpr int kNeeded = 24;  // with one thread of its own, two sockets and a few peers
  std::array<int, kNeeded> probes{};
  int opened = 0;
  while (opened < kNeeded && (probes[opened] = eventfd(0, EFD_CLOEXEC)) >= 0) ++opened;
  for (int i = 0; i < opened; ++i) close(probes[i]);
  if (opened == kNeeded) return {};
  return make_status(StatusCode::kIo, "KV events need {} open files more than this process may have; raise ulimit -n",
                     kNeeded - opened);
}

Result<std::string> bind_socket(const Socket& socket, const std::string& endpoint) {
  KVASIR_RETURN_IF_ERROR(check_port(endpoint));
  if (endpoint.find('[') != std::string::npos) set(socket, ZMQ_IPV6, 1);
  if (zmq->bind(socket.get(), endpoint.c_str()) != 0) {
    const int error = zmq->error_number();
    const bool malformed = error == EINVAL || error == EPROTONOSUPPORT || error == ENODEV;
    return make_status(malformed ? StatusCode::kInvalidArgument : StatusCode::kIo,
                       "cannot bind KV events to '{}': {}; give an address of this machine like tcp://127.0.0.1:5557",
                       endpoint, zmq->error_text(error));
  }
  std::array<char, 256> bound{};
  std::size_t size = bound.size();
  zmq->getsockopt(socket.get(), ZMQ_LAST_ENDPOINT, bound.data(), &size);
  return std::string(bound.data());
}

}  // namespace

std::string default_kv_topic(std::string_view model) {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0 || host[0] == '\0') host = {"localhost"};
  return fmt::format("kv@{}@{}", host.data(), model);
}

// Owns the sockets and the thread that uses them.
class KvEvents::Sender {
 public:
  explicit Sender(const KvEventOptions& options) : options_(options) {}
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;
  ~Sender() {
    if (thread_.joinable()) {
      stopping_ = true;
      wake();
      thread_.join();
    }
    if (woken_ >= 0) close(woken_);
  }

  Status open() {
    KVASIR_ASSIGN_OR_RETURN(zmq, ZmqLibrary::load());
    KVASIR_RETURN_IF_ERROR(check_descriptors());
    woken_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    context_.reset(zmq->ctx_new());
    if (woken_ < 0 || context_ == nullptr) return make_status(StatusCode::kIo, "cannot open sockets of KV events");
    publisher_.reset(zmq->socket(context_.get(), ZMQ_PUB));
    set(publisher_, ZMQ_SNDHWM, kUnsent);
    set(publisher_, ZMQ_LINGER, kLinger);
    KVASIR_ASSIGN_OR_RETURN(endpoint_, bind_socket(publisher_, options_.endpoint));
    if (!options_.replay.empty()) {
      router_.reset(zmq->socket(context_.get(), ZMQ_ROUTER));
      // Messages beyond this are dropped, with them the end for which a client waits. Room counts as free only some
      // time after a client has read.
      set(router_, ZMQ_SNDHWM, 4 * (static_cast<int>(options_.kept_batches) + 1));
      set(router_, ZMQ_LINGER, 0);
      zmq->setsockopt(router_.get(), ZMQ_MAXMSGSIZE, &kLongestRequest, sizeof(kLongestRequest));
      KVASIR_ASSIGN_OR_RETURN(replay_endpoint_, bind_socket(router_, options_.replay));
    }
    thread_ = std::thread([this] { run(); });
    return {};
  }

  const std::string& endpoint() const { return endpoint_; }
  const std::string& replay_endpoint() const { return replay_endpoint_; }

  // Queues a batch. Returns false, and queues nothing, if there is no room.
  bool push(KvEventBatch& batch) {
    const std::size_t bytes = bytes_of(batch);
    {
      const std::lock_guard lock(mutex_);
      if (queued_bytes_ + bytes > options_.queued_bytes) return false;
      queued_.push_back(std::move(batch));
      queued_bytes_ += bytes;
    }
    wake();
    return true;
  }

  // Queues a batch of any size in place of all waiting ones.
  void push_instead(KvEventBatch batch) {
    {
      const std::lock_guard lock(mutex_);
      queued_bytes_ = bytes_of(batch);
      queued_.clear();
      queued_.push_back(std::move(batch));
    }
    wake();
  }

  bool wants_anew() const { return wants_anew_; }
  bool take_wish() { return wants_anew_.exchange(false); }

 private:
  struct Sent {
    std::uint64_t number = 0;
    Payload payload;
  };

  void wake() const {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = write(woken_, &one, sizeof(one));
  }

  void run() {
    while (!stopping_) {
      std::array<zmq_pollitem_t, 2> items{{{nullptr, woken_, ZMQ_POLLIN, 0}, {router_.get(), 0, ZMQ_POLLIN, 0}}};
      if (zmq->poll(items.data(), router_ == nullptr ? 1 : 2, -1) < 0 && zmq->error_number() == ETERM) return;
      std::uint64_t count = 0;
      [[maybe_unused]] const auto cleared = read(woken_, &count, sizeof(count));
      try {
        send_queued();
        std::vector<std::string> frames;
        while (router_ != nullptr && receive(router_, frames)) replay(frames);
      } catch (const std::bad_alloc&) {
        wants_anew_ = true;
      }
    }
    try {
      send_queued();
      KvEventCollector last;
      last.clear();
      publish(last.take(now()));
    } catch (const std::bad_alloc&) {  // to subscribers, the publisher is gone
    }
  }

  void send_queued() {
    std::deque<KvEventBatch> batches;
    {
      const std::lock_guard lock(mutex_);
      batches.swap(queued_);
      queued_bytes_ = 0;
    }
    for (const KvEventBatch& batch : batches) publish(batch);
  }

  void publish(const KvEventBatch& batch) {
    const auto payload = std::make_shared<const std::string>(encode(batch));
    const auto number = big_endian(next_);
    // A subscriber that does not keep up loses messages; gaps in the numbers show it.
    if (send(publisher_, options_.topic) && send(publisher_, {number.data(), number.size()}))
      send_shared(publisher_, payload);
    kept_.push_back({next_++, payload});
    kept_bytes_ += payload->size();
    while (kept_.size() > options_.kept_batches || (kept_bytes_ > options_.kept_bytes && kept_.size() > 1)) {
      kept_bytes_ -= kept_.front().payload->size();
      kept_.pop_front();
    }
  }

  // Answers [client, "", number]. Ignores any other message.
  void replay(const std::vector<std::string>& frames) {
    if (frames.size() != 3 || !frames[1].empty() || frames[2].size() != 8) return;
    const std::uint64_t from = from_big_endian(frames[2]);
    for (const Sent& sent : kept_) {
      if (sent.number < from) continue;
      const auto number = big_endian(sent.number);
      if (!send(router_, frames[0]) || !send(router_, {}) || !send(router_, options_.topic) ||
          !send(router_, {number.data(), number.size()}) || !send_shared(router_, sent.payload))
        return;
    }
    const auto end = big_endian(kEnd);
    if (send(router_, frames[0]) && send(router_, {}) && send(router_, {}) && send(router_, {end.data(), end.size()}))
      send(router_, {}, 0);
    if (!kept_.empty() && from < kept_.front().number && Clock::now() >= next_anew_) {
      next_anew_ = Clock::now() + options_.anew_gap;
      wants_anew_ = true;
    }
  }

  const KvEventOptions options_;
  std::unique_ptr<void, EndContext> context_;  // before the sockets, so that these are closed first
  Socket publisher_;
  Socket router_;
  std::string endpoint_;
  std::string replay_endpoint_;
  int woken_ = -1;  // wakes the thread

  std::mutex mutex_;
  std::deque<KvEventBatch> queued_;
  std::size_t queued_bytes_ = 0;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> wants_anew_{false};

  // The thread's alone.
  std::uint64_t next_ = 0;
  std::deque<Sent> kept_;
  std::size_t kept_bytes_ = 0;
  Clock::time_point next_anew_ = Clock::now();

  std::thread thread_;
};

Result<std::unique_ptr<KvEvents>> KvEvents::open(const KvEventOptions& options) {
  auto sender = std::make_unique<Sender>(options);
  KVASIR_RETURN_IF_ERROR(sender->open());
  std::unique_ptr<KvEvents> events(new KvEvents(std::move(sender)));
  events->collector_.clear();
  events->sender_->push_instead(events->collector_.take(now()));
  return {std::move(events)};
}

KvEvents::KvEvents(std::unique_ptr<Sender> sender) : sender_(std::move(sender)) {}

KvEvents::~KvEvents() = default;

const std::string& KvEvents::endpoint() const {
  return sender_->endpoint();
}

const std::string& KvEvents::replay_endpoint() const {
  return sender_->replay_endpoint();
}

// Catches std::bad_alloc: the request that caused the event must not fail.
template <class Change>
void KvEvents::note(const Change& change) {
  try {
    change();
  } catch (const std::bad_alloc&) {
    lost_ = true;
  }
}

void KvEvents::stored(std::uint64_t hash, std::uint64_t parent, std::span<const std::int32_t> tokens,
                      std::string_view salt, std::string_view codec, std::string_view adapters) {
  note([&] { collector_.stored(hash, parent, tokens, salt, codec, adapters); });
}

void KvEvents::removed(std::uint64_t hash) {
  note([&] { collector_.removed(hash); });
}

bool KvEvents::wants_pass() const {
  return sender_->wants_anew();
}

void KvEvents::end_pass(Engine& engine) {
  note([&] {
    bool anew = sender_->take_wish() || lost_;
    if (!anew && collector_.empty()) return;
    if (!anew) {
      KvEventBatch batch = collector_.take(now());
      anew = !sender_->push(batch);
    }
    if (!anew) return;
    lost_ = false;
    collector_.clear();
    engine.set_prefix_listener(this);  // reports all blocks
    if (!lost_) sender_->push_instead(collector_.take(now()));
  });
}

}  // namespace kvasir::server
