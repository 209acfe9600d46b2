// The answers of one connection as bytes: heads, bodies, the framing of streams, and how much has been written.
// Thread-safety: the I/O thread's alone.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "server/http/http_server.h"

namespace kvasir::server {

class AnswerBytes {
 public:
  // Begins the next answer. `in_chunks`: the client reads chunks (HTTP/1.1); otherwise a stream ends with the
  // connection. `head_only`: the answer has no body.
  void begin(bool in_chunks = false, bool head_only = false);

  bool in_chunks() const { return in_chunks_; }
  bool streams() const { return streams_; }
  // Returns bytes that no reader of the stream minds between two writes: a comment in server-sent events, a space in
  // front of a line of JSON.
  std::string_view filler() const;
  // Whether the answer is complete. It may not be written yet.
  bool ended() const { return ended_; }

  // See HttpAnswer. `keep_alive`: whether another request may follow. REQUIRES: !ended(); send, add_fields and
  // begin_stream: !streams(); write and end: streams().
  void add_fields(const HttpFields& fields);
  void send(int status, std::string_view type, std::string_view body, const HttpFields& fields, bool keep_alive);
  void begin_stream(const HttpFields& fields, std::string_view type, bool keep_alive);
  void write(std::string_view bytes);
  void end();

  // Adds an interim answer, unless other bytes wait to be written.
  void add_continue();

  // The number of bytes queued behind unwritten().
  std::size_t queued() const { return next_.size(); }
  // Returns the bytes to write now; empty: none. They stay valid until all of them have been written.
  std::string_view unwritten();
  void wrote(std::size_t bytes) { written_ += bytes; }

 private:
  HttpFields own_fields_;  // for the answer's header, from add_fields
  bool in_chunks_ = false;
  bool head_only_ = false;
  bool streams_ = false;
  bool events_ = false;  // the stream is one of server-sent events
  bool ended_ = false;
  std::string out_, next_;   // bytes being written, and bytes behind them
  std::size_t written_ = 0;  // of out_
};

inline constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

}  // namespace kvasir::server
