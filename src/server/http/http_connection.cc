#include "server/http/http_connection.h"

#include <fmt/core.h>
#include <malloc.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <exception>
#include <optional>
#include <utility>

#include "server/http/http_message.h"
#include "server/http/random_name.h"

namespace kvasir::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using Error = boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr std::string_view kWrongVersion = "the HTTP version must be 1.0 or 1.1";
constexpr std::size_t kReadBytes = 64 << 10;
constexpr std::chrono::milliseconds kFirstBeat{10}, kLongestBeat{1000};

// A least rate. Each part of what passes, of as many bytes as the rate gives in `time`, may take `time`: who has passed
// much at once gets no more time for the rest.
class Pace {
 public:
  void begin() {
    began_ = Clock::now();
    bytes_ = 0;
  }
  void add(std::size_t bytes) { bytes_ += bytes; }
  // How long the part under way may still take.
  Clock::duration left(std::size_t rate, std::chrono::seconds time) {
    if (bytes_ >= rate * static_cast<std::size_t>(time.count())) begin();
    return began_ + time - Clock::now();
  }

 private:
  Clock::time_point began_{};
  std::size_t bytes_ = 0;  // of that part
};

std::string request_id(std::string_view given) {
  const auto is_printable = [](char c) { return c > 0x20 && c < 0x7f; };
  const bool fits = !given.empty() && given.size() <= 128 && std::ranges::all_of(given, is_printable);
  return fits ? std::string(given) : random_name(4);
}

// Whether an error says that the connection is gone, not that its bytes are wrong.
bool is_lost(const Error& error) {
  return error && (error.category() == asio::error::get_system_category() || error == asio::error::eof);
}

// One connection: it reads a request, waits for its answer, writes it, and reads the next. Lives as long as one of its
// operations is pending.
class Connection final : public HttpConnection, public std::enable_shared_from_this<Connection> {
 public:
  Connection(HttpShared& shared, tcp::socket socket, std::string address)
      : shared_(shared),
        socket_(std::move(socket)),
        timer_(shared.context),
        beat_(shared.context),
        address_(std::move(address)),
        buffer_(shared.limits.header_bytes + kReadBytes) {
    shared_.open.insert(this);
    ++shared_.by_address[address_];
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() override {
    close();
    shared_.open.erase(this);
    if (const auto found = shared_.by_address.find(address_); --found->second == 0) shared_.by_address.erase(found);
    if (shared_.closed) shared_.closed();
  }

  void read_request();
  bool idle() const override { return state_ == State::kIdle; }
  void close() override;
  void cut_off() override;

  // The answer of request `number`; without effect once that is over.
  void send(std::uint64_t number, int status, std::string_view type, std::string body, const HttpFields& fields);
  void add_fields(std::uint64_t number, const HttpFields& fields);
  void begin_stream(std::uint64_t number, const HttpFields& fields);
  void write(std::uint64_t number, std::string_view bytes);
  void end(std::uint64_t number);
  void abandon(std::uint64_t number);
  void on_closed(std::uint64_t number, std::function<void()> callback);

 private:
  enum class State { kIdle, kReading, kAnswering, kLingering, kClosed };

  bool answers(std::uint64_t number) const { return state_ == State::kAnswering && number == number_ && !ended_; }
  void expire_after(Clock::duration time);
  void wait_for_header(bool waits);
  void read_header();
  void take_header();
  bool admit();
  void begin_body();
  void read_body();
  bool ends_reading(const Error& error);
  void hold_body(std::size_t bytes);
  void dispatch();
  void refuse(int status, std::string_view message, std::string_view code = {});
  void watch();
  void probe();
  void beat();
  void queue(std::string_view bytes);
  void write_more();
  void finish();
  void linger();

  HttpShared& shared_;
  tcp::socket socket_;
  asio::steady_timer timer_, beat_;
  std::string address_;
  State state_ = State::kIdle;
  std::optional<std::list<HttpConnection*>::iterator> waits_;  // its place in HttpShared::waiting
  beast::flat_buffer buffer_;  // bounded: chunk extensions and trailers, which the parser does not limit, stay in it
  std::optional<http::request_parser<http::string_body>> parser_;
  Pace body_pace_;             // of the client that sends it
  std::size_t body_held_ = 0;  // counted in HttpShared::bodies: the request's, then that of a whole answer
  std::string account_;        // there
  HttpRequest request_;        // without its body, and without fields behind a chunked one
  HttpFields own_fields_;      // of its answer, in whichever form
  std::uint64_t number_ = 0;   // of the request
  bool keep_alive_ = false;
  bool chunked_ = false;  // the answer is a stream in chunks; otherwise its end is the connection's
  bool streams_ = false;
  bool ended_ = false;  // the answer is complete, perhaps not written yet
  bool writing_ = false;
  bool checks_unread_ = false;  // the size of next_ is looked at after this turn of the I/O thread
  bool head_only_ = false;
  std::string out_, next_;   // being written, and behind that
  std::size_t written_ = 0;  // of out_
  bool behind_ = false;      // something waits for the reader
  Pace reader_pace_;         // while it does
  Clock::time_point said_{};
  std::chrono::milliseconds beat_time_ = kLongestBeat;
  std::function<void()> closed_;
};

class Answer final : public HttpAnswer {
 public:
  Answer(std::weak_ptr<Connection> connection, std::uint64_t number)
      : connection_(std::move(connection)), number_(number) {}
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;
  ~Answer() override {
    if (const auto connection = connection_.lock()) connection->abandon(number_);
  }
  void add_fields(const HttpFields& fields) override {
    if (const auto connection = connection_.lock()) connection->add_fields(number_, fields);
  }
  void send(int status, std::string_view type, std::string body, const HttpFields& fields) override {
    if (const auto connection = connection_.lock()) connection->send(number_, status, type, std::move(body), fields);
  }
  void begin_stream(const HttpFields& fields) override {
    if (const auto connection = connection_.lock()) connection->begin_stream(number_, fields);
  }
  void write(std::string_view bytes) override {
    if (const auto connection = connection_.lock()) connection->write(number_, bytes);
  }
  void end() override {
    if (const auto connection = connection_.lock()) connection->end(number_);
  }
  void on_closed(std::function<void()> callback) override {
    if (const auto connection = connection_.lock()) connection->on_closed(number_, std::move(callback));
  }

  // The request goes on: dropping this ends nothing.
  void dismiss() { connection_.reset(); }

 private:
  std::weak_ptr<Connection> connection_;
  std::uint64_t number_;
};

// Closes the connection unless the state moves on before.
void Connection::expire_after(Clock::duration time) {
  timer_.expires_after(time);
  timer_.async_wait([self = weak_from_this()](Error error) {
    const auto connection = self.lock();
    if (!error && connection != nullptr && connection->timer_.expiry() <= Clock::now()) connection->close();
  });
}

void Connection::wait_for_header(bool waits) {
  if (waits == waits_.has_value()) return;
  if (waits) {
    waits_ = shared_.waiting.insert(shared_.waiting.end(), this);
  } else {
    shared_.waiting.erase(*std::exchange(waits_, {}));
  }
}

void Connection::close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  wait_for_header(false);
  timer_.cancel();
  beat_.cancel();
  hold_body(0);
  Error ignored;
  socket_.close(ignored);
  if (const auto callback = std::exchange(closed_, {})) callback();
}

void Connection::read_request() {
  state_ = State::kIdle;
  ++number_;
  ended_ = streams_ = chunked_ = head_only_ = false;
  own_fields_.clear();
  hold_body(0);
  if (shared_.draining) return close();
  wait_for_header(true);
  if (buffer_.size() > 0) return read_header();
  buffer_.shrink_to_fit();
  expire_after(shared_.limits.keep_alive);
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](Error error) {
    if (self->state_ != State::kIdle) return;
    if (error) return self->close();
    self->read_header();
  });
}

void Connection::read_header() {
  state_ = State::kReading;
  parser_.emplace();
  parser_->header_limit(static_cast<std::uint32_t>(shared_.limits.header_bytes));
  parser_->body_limit(shared_.limits.body_bytes);
  expire_after(shared_.limits.header_time);
  http::async_read_header(socket_, buffer_, *parser_, [self = shared_from_this()](Error error, std::size_t) {
    if (self->state_ != State::kReading) return;
    if (!error) return self->take_header();
    if (error == http::error::header_limit || error == http::error::buffer_overflow)
      return self->refuse(
          431, fmt::format("the header has more than {} bytes; send less", self->shared_.limits.header_bytes));
    if (error == http::error::body_limit)
      return self->refuse(413,
                          fmt::format("the body has more than {} bytes; send less", self->shared_.limits.body_bytes));
    if (self->ends_reading(error)) return;
    const asio::const_buffer read = self->buffer_.data();
    if (error == http::error::bad_version && names_http_version({static_cast<const char*>(read.data()), read.size()}))
      return self->refuse(505, kWrongVersion);
    self->refuse(400, header_problem(error, self->parser_->get()));
  });
}

void Connection::take_header() {
  wait_for_header(false);
  const auto& message = parser_->get();
  if (std::distance(message.begin(), message.end()) > shared_.limits.header_fields)
    return refuse(431, fmt::format("the header has more than {} fields; send fewer", shared_.limits.header_fields));
  if (message.version() < 10 || message.version() > 11) return refuse(505, kWrongVersion);
  if (message.version() == 11 && message.count(http::field::host) != 1)
    return refuse(400, "a request has one field 'Host'");
  if (!is_framed(message))
    return refuse(400, "the length of the body is given by one 'Content-Length' or by 'Transfer-Encoding: chunked'");
  if (const auto size = parser_->content_length(); size && *size > shared_.limits.body_bytes)
    return refuse(
        413, fmt::format("the body of {} bytes is larger than the {} accepted here", *size, shared_.limits.body_bytes));
  request_ = request_of(message);
  request_.address = address_;
  request_.id = request_id(request_.field("x-request-id"));
  own_fields_.emplace_back("X-Request-Id", request_.id);
  keep_alive_ = message.keep_alive();
  chunked_ = message.version() == 11;
  head_only_ = message.method() == http::verb::head;
  account_ = address_;
  if (const std::string_view coding = request_.field("content-encoding"); !coding.empty() && coding != "identity")
    return refuse(415, "the body is compressed (Content-Encoding), which is not supported here; send it as it is");
  if (parser_->is_done()) return dispatch();
  if (!admit()) return;
  // A client of HTTP/1.0 would take "100 Continue" for the answer.
  if (message.count(http::field::expect) == 0 || message.version() == 10) return begin_body();
  if (!beast::iequals(message[http::field::expect], "100-continue"))
    return refuse(417, "the expectation cannot be met");
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  asio::async_write(socket_, asio::buffer(kContinue), [self = shared_from_this()](Error error, std::size_t) {
    if (self->state_ != State::kReading) return;
    if (error) return self->close();
    self->begin_body();
  });
}

// Asks who sends a body before it is read. Returns false where that was answered with a refusal.
bool Connection::admit() {
  if (!shared_.admit) return true;
  state_ = State::kAnswering;
  const bool keep_alive = std::exchange(keep_alive_, false);  // a refused body is not read
  Answer answer(weak_from_this(), number_);
  std::optional<std::string> account = shared_.admit(request_, answer);
  if (!account) return false;
  state_ = State::kReading;
  keep_alive_ = keep_alive;
  account_ = std::move(*account);
  answer.dismiss();
  return true;
}

void Connection::begin_body() {
  body_pace_.begin();
  read_body();
}

void Connection::read_body() {
  if (parser_->is_done()) return dispatch();
  expire_after(body_pace_.left(shared_.limits.body_rate, shared_.limits.body_grace));
  http::async_read_some(socket_, buffer_, *parser_, [self = shared_from_this()](Error error, std::size_t bytes) {
    if (self->state_ != State::kReading) return;
    self->body_pace_.add(bytes);
    self->hold_body(self->parser_->get().body().size());
    if (!self->shared_.bodies.fits(self->account_))
      return self->refuse(503, "the server holds too many large requests; try again later");
    if (!error) return self->read_body();
    if (error == http::error::body_limit)
      return self->refuse(413,
                          fmt::format("the body has more than {} bytes; send less", self->shared_.limits.body_bytes));
    if (error == http::error::partial_message) return self->close();
    if (self->ends_reading(error)) return;
    self->refuse(400, "the body is not as the header says");
  });
}

// Whether an error ends the connection, which it does then: the client has gone, or the server is shutting down.
bool Connection::ends_reading(const Error& error) {
  if (shared_.cut_off && error == asio::error::operation_aborted) {
    refuse(503, kCutOff, kShutdown);
    return true;
  }
  if (error != http::error::end_of_stream && !is_lost(error)) return false;
  close();
  return true;
}

// Counts a body that is read or answered; 0: it is gone. What was made of a large one leaves much memory between what
// stays, which the system gets back only on demand.
void Connection::hold_body(std::size_t bytes) {
  if (bytes < (1 << 20) && body_held_ >= (1 << 20)) ::malloc_trim(0);
  shared_.bodies.change(account_, body_held_, bytes);
  body_held_ = bytes;
}

void Connection::dispatch() {
  state_ = State::kAnswering;
  timer_.cancel();
  auto message = parser_->release();
  parser_.reset();
  request_.body = std::move(message.body());
  watch();
  const auto answer = std::make_shared<Answer>(weak_from_this(), number_);
  try {
    shared_.handler(std::exchange(request_, {}), answer);
  } catch (const std::exception&) {  // such as no memory
    if (streams_) return close();
    keep_alive_ = false;
    send(number_, 500, "application/json", error_body("the server could not answer this request", "server_error"), {});
  }
}

// Answers a request that cannot be read to its end, and closes.
void Connection::refuse(int status, std::string_view message, std::string_view code) {
  wait_for_header(false);
  state_ = State::kAnswering;
  keep_alive_ = false;
  send(number_, status, "application/json", error_body(message, error_type(status), code), {});
}

// A read that is under way ends with an error, and is answered where that arrives.
void Connection::cut_off() {
  Error ignored;
  if (state_ == State::kReading) socket_.cancel(ignored);
  if (state_ != State::kAnswering || ended_) return;
  if (streams_) return close();
  refuse(503, kCutOff, kShutdown);
}

// Notices a client that leaves while its request is answered. A client that has only shut down its sending side is
// answered, but for a whole answer to HTTP/1.0. TCP shows the difference only once bytes are sent: a client that has
// gone resets the connection. So probe() sends bytes that no client minds. Where the client has sent more bytes
// already, which hide its leaving from a read, the state of the connection tells.
void Connection::watch() {
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this(), number = number_](Error error) {
    if (self->state_ != State::kAnswering || self->number_ != number || self->ended_) return;
    char byte = 0;
    const auto got = error ? -1 : ::recv(self->socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return self->close();
    if (got == 0) {
      self->probe();
      self->beat_time_ = kFirstBeat;  // what comes back shows soon
      return self->beat();
    }
    // beat() asks again, so that bytes that stay unread do not wake this up for ever.
  });
  beat_time_ = kLongestBeat;
  beat();
}

void Connection::probe() {
  keep_alive_ = false;
  if (streams_) {
    queue(": waiting\n\n");
  } else if (!chunked_) {
    close();  // HTTP/1.0, in which nothing may precede an answer: it counts as gone
  } else if (next_.empty()) {
    next_ += "HTTP/1.1 100 Continue\r\n\r\n";
    write_more();
  }
}

// Holds the connection while its answer is under way: nothing else may be pending then.
void Connection::beat() {
  if (state_ != State::kAnswering) return;
  beat_.expires_after(beat_time_);
  beat_time_ = std::min(2 * beat_time_, kLongestBeat);
  beat_.async_wait([self = shared_from_this(), number = number_](Error error) {
    if (error || self->number_ != number || self->state_ != State::kAnswering || self->ended_) return;
    tcp_info info{};
    socklen_t size = sizeof info;
    if (::getsockopt(self->socket_.native_handle(), IPPROTO_TCP, TCP_INFO, &info, &size) == 0) {
      if (info.tcpi_state == TCP_CLOSE) return self->close();
      if (info.tcpi_state == TCP_CLOSE_WAIT) self->probe();
    }
    if (self->state_ != State::kAnswering) return;
    if (self->streams_ && Clock::now() - self->said_ >= self->shared_.limits.heartbeat) self->queue(": waiting\n\n");
    self->beat();
  });
}

void Connection::add_fields(std::uint64_t number, const HttpFields& fields) {
  if (!answers(number) || streams_) return;
  for (const auto& field : fields) {
    std::erase_if(own_fields_, [&](const auto& other) { return other.first == field.first; });
    own_fields_.push_back(field);
  }
}

void Connection::send(std::uint64_t number, int status, std::string_view type, std::string body,
                      const HttpFields& fields) {
  if (!answers(number) || streams_) return;
  keep_alive_ = keep_alive_ && !shared_.draining;
  HttpFields all = std::exchange(own_fields_, {});
  all.insert(all.end(), fields.begin(), fields.end());
  next_ += answer_head(status, type, BodyEnd::kLength, body.size(), all, keep_alive_);
  if (!head_only_) next_ += body;
  hold_body(next_.size());  // the request's is gone
  ended_ = true;
  write_more();
}

void Connection::begin_stream(std::uint64_t number, const HttpFields& fields) {
  if (!answers(number) || streams_) return;
  streams_ = true;
  keep_alive_ = keep_alive_ && chunked_ && !shared_.draining;
  HttpFields all = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  all.insert(all.end(), own_fields_.begin(), own_fields_.end());
  all.insert(all.end(), fields.begin(), fields.end());
  next_ +=
      answer_head(200, "text/event-stream", chunked_ ? BodyEnd::kChunks : BodyEnd::kConnection, 0, all, keep_alive_);
  said_ = Clock::now();
  ended_ = head_only_;
  write_more();
}

void Connection::write(std::uint64_t number, std::string_view bytes) {
  if (answers(number) && streams_ && !bytes.empty()) queue(bytes);
}

// Closes the connection of a reader that is behind by more than the bound, but not before its socket has had a turn to
// take what one turn of the I/O thread has queued, and never inside of the caller's write().
void Connection::queue(std::string_view bytes) {
  if (next_.size() > shared_.limits.queued_bytes && !std::exchange(checks_unread_, true))
    asio::post(shared_.context, [self = shared_from_this()] {
      self->checks_unread_ = false;
      if (self->next_.size() > self->shared_.limits.queued_bytes) self->close();
    });
  said_ = Clock::now();
  if (chunked_) next_ += fmt::format("{:x}\r\n", bytes.size());
  next_ += bytes;
  if (chunked_) next_ += "\r\n";
  write_more();
}

void Connection::end(std::uint64_t number) {
  if (!answers(number) || !streams_) return;
  if (chunked_) next_ += "0\r\n\r\n";
  ended_ = true;
  write_more();
}

void Connection::abandon(std::uint64_t number) {
  if (answers(number)) close();
}

void Connection::on_closed(std::uint64_t number, std::function<void()> callback) {
  if (answers(number)) {
    closed_ = std::move(callback);
  } else if (state_ == State::kClosed) {
    callback();
  }
}

void Connection::write_more() {
  if (writing_) return;
  if (written_ == out_.size()) {
    out_ = std::exchange(next_, {});
    written_ = 0;
  }
  if (out_.empty()) {
    behind_ = false;
    if (ended_) finish();
    return;
  }
  writing_ = true;
  if (!std::exchange(behind_, true)) reader_pace_.begin();
  expire_after(reader_pace_.left(shared_.limits.body_rate, shared_.limits.write_stall));
  socket_.async_write_some(asio::buffer(out_) + written_, [self = shared_from_this()](Error error, std::size_t bytes) {
    self->writing_ = false;
    if (self->state_ != State::kAnswering) return;
    self->timer_.cancel();
    if (error) return self->close();
    self->written_ += bytes;
    self->reader_pace_.add(bytes);
    self->write_more();
  });
}

void Connection::finish() {
  beat_.cancel();
  closed_ = {};
  if (keep_alive_) return read_request();
  linger();
}

// Says that nothing more comes, and reads what the client still sends, for a moment and no more than two bodies:
// closing with unread bytes would reset the connection, and the client might lose the answer.
void Connection::linger() {
  state_ = State::kLingering;
  wait_for_header(true);
  Error error;
  socket_.shutdown(tcp::socket::shutdown_send, error);
  if (error) return close();
  expire_after(std::chrono::seconds(2));
  hold_body(0);
  buffer_.clear();
  struct Drop {
    static void read(const std::shared_ptr<Connection>& self, std::size_t left) {
      self->socket_.async_read_some(self->buffer_.prepare(kReadBytes),
                                    [self, left](Error read_error, std::size_t bytes) {
                                      if (self->state_ != State::kLingering) return;
                                      if (read_error || bytes >= left) return self->close();
                                      read(self, left - bytes);
                                    });
    }
  };
  Drop::read(shared_from_this(), 2 * shared_.limits.body_bytes);
}

}  // namespace

void serve_connection(HttpShared& shared, tcp::socket socket, std::string address) {
  std::make_shared<Connection>(shared, std::move(socket), std::move(address))->read_request();
}

}  // namespace kvasir::server
