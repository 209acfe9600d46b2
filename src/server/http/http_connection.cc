#include "server/http/http_connection.h"

#include <fmt/core.h>

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

#include "server/http/answer_bytes.h"
#include "server/http/client_watch.h"
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

constexpr std::size_t kReadBytes = 64 << 10;

// Enforces a least rate. The bytes are divided into parts of rate * time bytes, each of which may take `time`. Bytes
// that come early give no extra time to later parts.
class Pace {
 public:
  void begin() {
    began_ = Clock::now();
    bytes_ = 0;
  }
  void add(std::size_t bytes) { bytes_ += bytes; }
  // Returns the time left for the current part. `rate`: bytes a second.
  Clock::duration left(std::size_t rate, std::chrono::seconds time) {
    if (bytes_ >= rate * static_cast<std::size_t>(time.count())) begin();
    return began_ + time - Clock::now();
  }

 private:
  Clock::time_point began_{};
  std::size_t bytes_ = 0;  // of the current part
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

// Reads a request, waits for its answer, writes it, and reads the next. Lives as long as one of its operations is
// pending.
class Connection final : public HttpConnection, public std::enable_shared_from_this<Connection> {
 public:
  Connection(HttpShared& shared, tcp::socket socket, std::string address)
      : shared_(shared),
        socket_(std::move(socket)),
        timer_(shared.context),
        watch_(socket_),
        address_(std::move(address)),
        buffer_(shared.limits.header_bytes + kReadBytes),
        body_(shared.bodies) {
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

  // Whether the answer to request `number` is under way. REQUIRED by the calls below, which implement HttpAnswer.
  bool answers(std::uint64_t number) const {
    return state_ == State::kAnswering && number == number_ && !answer_.ended();
  }
  bool is_closed() const { return state_ == State::kClosed; }
  void add_fields(const HttpFields& fields);
  void send(int status, std::string_view type, std::string_view body, const HttpFields& fields);
  void begin_stream(const HttpFields& fields, std::string_view type);
  void write(std::string_view bytes);
  void end();
  void on_closed(std::function<void()> callback) { closed_ = std::move(callback); }

 private:
  enum class State { kIdle, kReading, kAnswering, kLingering, kClosed };

  void expire_after(Clock::duration time);
  void wait_for_header(bool waits);
  void read_header();
  void take_header();
  bool admit();
  void begin_body();
  void read_body();
  bool ends_reading(const Error& error);
  void dispatch();
  void refuse(const HttpRefusal& refusal);
  void noticed(ClientWatch::Sign sign);
  void write_more();
  void linger();

  HttpShared& shared_;
  tcp::socket socket_;
  asio::steady_timer timer_;
  ClientWatch watch_;
  std::string address_;
  State state_ = State::kIdle;
  std::optional<std::list<HttpConnection*>::iterator> waits_;  // its place in HttpShared::waiting
  beast::flat_buffer buffer_;  // bounded: chunk extensions and trailers, which the parser does not limit, stay in it
  std::optional<http::request_parser<http::string_body>> parser_;
  Pace body_pace_;            // the client's, sending the body
  HeldBody body_;             // of the request, then of a whole answer
  HttpRequest request_;       // without its body, and without trailers of a chunked body
  std::uint64_t number_ = 0;  // of the request
  bool keep_alive_ = false;
  AnswerBytes answer_;
  bool writing_ = false;
  bool checks_unread_ = false;  // the queued bytes are checked after this turn of the I/O thread
  bool behind_ = false;         // bytes wait for the reader
  Pace reader_pace_;            // while bytes wait
  Clock::time_point said_{};    // when bytes were last added to the stream
  std::function<void()> closed_;
};

class Answer final : public HttpAnswer {
 public:
  Answer(std::weak_ptr<Connection> connection, std::uint64_t number)
      : connection_(std::move(connection)), number_(number) {}
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;
  ~Answer() override {
    if (const auto connection = mine()) connection->close();
  }
  void add_fields(const HttpFields& fields) override {
    if (const auto connection = mine()) connection->add_fields(fields);
  }
  void send(int status, std::string_view type, std::string body, const HttpFields& fields) override {
    if (const auto connection = mine()) connection->send(status, type, body, fields);
  }
  void begin_stream(const HttpFields& fields, std::string_view type) override {
    if (const auto connection = mine()) connection->begin_stream(fields, type);
  }
  void write(std::string_view bytes) override {
    if (const auto connection = mine()) connection->write(bytes);
  }
  void end() override {
    if (const auto connection = mine()) connection->end();
  }
  void on_closed(std::function<void()> callback) override {
    if (const auto connection = mine()) return connection->on_closed(std::move(callback));
    if (const auto connection = connection_.lock(); connection != nullptr && connection->is_closed()) callback();
  }

  // Detaches this from the request, so that dropping it ends nothing.
  void dismiss() { connection_.reset(); }

 private:
  // Returns the connection while it waits for this answer, or null.
  std::shared_ptr<Connection> mine() const {
    auto connection = connection_.lock();
    return connection != nullptr && connection->answers(number_) ? connection : nullptr;
  }

  std::weak_ptr<Connection> connection_;
  std::uint64_t number_;
};

// Closes the connection after `time`, unless the state changes before.
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
  watch_.stop();
  body_.hold(0);
  Error ignored;
  socket_.close(ignored);
  if (const auto callback = std::exchange(closed_, {})) callback();
}

void Connection::read_request() {
  state_ = State::kIdle;
  ++number_;
  answer_.begin();
  body_.hold(0);
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
    if (self->ends_reading(error)) return;
    const asio::const_buffer read = self->buffer_.data();
    self->refuse(header_refusal(error, self->parser_->get(), {static_cast<const char*>(read.data()), read.size()},
                                self->shared_.limits));
  });
}

void Connection::take_header() {
  wait_for_header(false);
  const auto& message = parser_->get();
  const auto body_bytes = parser_->content_length();
  if (const auto refusal =
          header_refusal(message, body_bytes ? std::optional(*body_bytes) : std::nullopt, shared_.limits))
    return refuse(*refusal);
  request_ = request_of(message);
  request_.address = address_;
  request_.id = request_id(request_.field("x-request-id"));
  answer_.begin(message.version() == 11, message.method() == http::verb::head);
  answer_.add_fields({{"X-Request-Id", request_.id}});
  keep_alive_ = message.keep_alive();
  body_.set_account(address_);
  if (const std::string_view coding = request_.field("content-encoding"); !coding.empty() && coding != "identity")
    return refuse({415, "the body is compressed (Content-Encoding), which is not supported here; send it as it is"});
  if (parser_->is_done()) return dispatch();
  if (!admit()) return;
  // A client of HTTP/1.0 would take "100 Continue" for the answer.
  if (message.count(http::field::expect) == 0 || message.version() == 10) return begin_body();
  if (!beast::iequals(message[http::field::expect], "100-continue"))
    return refuse({417, "the expectation cannot be met"});
  asio::async_write(socket_, asio::buffer(kContinue), [self = shared_from_this()](Error error, std::size_t) {
    if (self->state_ != State::kReading) return;
    if (error) return self->close();
    self->begin_body();
  });
}

// Asks HttpServer::Admit before the body is read. Returns false if a refusal was sent.
bool Connection::admit() {
  if (!shared_.admit) return true;
  state_ = State::kAnswering;
  const bool keep_alive = std::exchange(keep_alive_, false);  // a refused body is not read
  Answer answer(weak_from_this(), number_);
  std::optional<std::string> account = shared_.admit(request_, answer);
  if (!account) return false;
  state_ = State::kReading;
  keep_alive_ = keep_alive;
  body_.set_account(std::move(*account));
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
    self->body_.hold(self->parser_->get().body().size());
    if (!self->body_.fits()) return self->refuse({503, "the server holds too many large requests; try again later"});
    if (!error) return self->read_body();
    if (error == http::error::body_limit) return self->refuse(body_too_large(self->shared_.limits));
    if (error == http::error::partial_message) return self->close();
    if (self->ends_reading(error)) return;
    self->refuse({400, "the body is not as the header says"});
  });
}

// Ends the connection if the client has gone or the server is shutting down. Returns whether it did.
bool Connection::ends_reading(const Error& error) {
  if (shared_.cut_off && error == asio::error::operation_aborted) {
    refuse({503, std::string(kCutOff), kShutdown});
    return true;
  }
  if (error != http::error::end_of_stream && !is_lost(error)) return false;
  close();
  return true;
}

void Connection::dispatch() {
  state_ = State::kAnswering;
  timer_.cancel();
  auto message = parser_->release();
  parser_.reset();
  request_.body = std::move(message.body());
  watch_.begin([self = shared_from_this()](ClientWatch::Sign sign) { self->noticed(sign); });
  const auto answer = std::make_shared<Answer>(weak_from_this(), number_);
  try {
    shared_.handler(std::exchange(request_, {}), answer);
  } catch (const std::exception&) {  // such as no memory
    if (answer_.streams()) return close();
    if (answers(number_)) refuse({500, "the server could not answer this request"});
  }
}

// Answers a request that cannot be read to its end, and closes.
void Connection::refuse(const HttpRefusal& refusal) {
  wait_for_header(false);
  state_ = State::kAnswering;
  keep_alive_ = false;
  send(refusal.status, "application/json", error_body(refusal.message, error_type(refusal.status), refusal.code), {});
}

// A read under way ends with an error, whose handler answers the request.
void Connection::cut_off() {
  Error ignored;
  if (state_ == State::kReading) socket_.cancel(ignored);
  if (!answers(number_)) return;
  if (answer_.streams()) return close();
  refuse({503, std::string(kCutOff), kShutdown});
}

// A client that has only shut down its sending side is still answered, except with a whole answer to HTTP/1.0.
void Connection::noticed(ClientWatch::Sign sign) {
  if (sign == ClientWatch::Sign::kGone) return close();
  if (sign == ClientWatch::Sign::kHere) {
    if (Clock::now() - said_ >= shared_.limits.heartbeat) write(answer_.filler());
    return;
  }
  keep_alive_ = false;
  if (answer_.streams()) return write(answer_.filler());
  if (!answer_.in_chunks()) return close();  // HTTP/1.0 has no interim answers: the client counts as gone
  answer_.add_continue();
  write_more();
}

void Connection::add_fields(const HttpFields& fields) {
  if (!answer_.streams()) answer_.add_fields(fields);
}

void Connection::send(int status, std::string_view type, std::string_view body, const HttpFields& fields) {
  if (answer_.streams()) return;
  keep_alive_ = keep_alive_ && !shared_.draining;
  answer_.send(status, type, body, fields, keep_alive_);
  body_.hold(answer_.queued());  // the request's body is gone
  write_more();
}

void Connection::begin_stream(const HttpFields& fields, std::string_view type) {
  if (answer_.streams()) return;
  keep_alive_ = keep_alive_ && answer_.in_chunks() && !shared_.draining;
  answer_.begin_stream(fields, type, keep_alive_);
  said_ = Clock::now();
  write_more();
}

// Closes the connection of a reader that is too far behind. The check is posted: the socket can first take what this
// turn of the I/O thread has queued, and write() never closes the connection itself.
void Connection::write(std::string_view bytes) {
  if (!answer_.streams() || bytes.empty()) return;
  if (answer_.queued() > shared_.limits.queued_bytes && !std::exchange(checks_unread_, true))
    asio::post(shared_.context, [self = shared_from_this()] {
      self->checks_unread_ = false;
      if (self->answer_.queued() > self->shared_.limits.queued_bytes) self->close();
    });
  said_ = Clock::now();
  answer_.write(bytes);
  write_more();
}

void Connection::end() {
  if (!answer_.streams()) return;
  answer_.end();
  write_more();
}

void Connection::write_more() {
  if (answer_.ended()) watch_.stop();
  if (writing_) return;
  const std::string_view bytes = answer_.unwritten();
  if (bytes.empty()) {
    behind_ = false;
    if (!answer_.ended()) return;
    closed_ = {};
    return keep_alive_ ? read_request() : linger();
  }
  writing_ = true;
  if (!std::exchange(behind_, true)) reader_pace_.begin();
  expire_after(reader_pace_.left(shared_.limits.body_rate, shared_.limits.write_stall));
  socket_.async_write_some(asio::buffer(bytes), [self = shared_from_this()](Error error, std::size_t written) {
    self->writing_ = false;
    if (self->state_ != State::kAnswering) return;
    self->timer_.cancel();
    if (error) return self->close();
    self->answer_.wrote(written);
    self->reader_pace_.add(written);
    self->write_more();
  });
}

// Shuts down sending, and reads further bytes of the client, for a moment and at most two bodies' worth: closing with
// unread bytes would reset the connection, and the client might lose the answer.
void Connection::linger() {
  state_ = State::kLingering;
  wait_for_header(true);
  Error error;
  socket_.shutdown(tcp::socket::shutdown_send, error);
  if (error) return close();
  expire_after(std::chrono::seconds(2));
  body_.hold(0);
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
