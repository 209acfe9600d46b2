// Reads JSON character by character as it is generated: where a value ends, and a call in the form of an object.
// Thread-safety: none; values.
#pragma once

#include <string>

#include "dialogue/answer_format.h"

namespace kvasir {

enum class JsonProgress {
  kMore,  // the value goes on
  kDone,  // the character ended it
  kBad,   // this cannot be JSON, or it nests deeper than 64
};

// Finds the end of an object, a list or a string by its brackets and quotation marks. What is between them is not
// checked.
class JsonEnd {
 public:
  JsonProgress push(char c);
  bool started() const { return started_; }

 private:
  int depth_ = 0;
  bool started_ = false, quoted_ = false, escaped_ = false;
};

// Reads {"name": "f", "arguments": {...}} with the keys of a format.
class CallObjectReader {
 public:
  explicit CallObjectReader(const CallFormat& format) : format_(&format) {}

  JsonProgress push(char c);

  // Return the parts of the call that have been read. The name is the decoded JSON string; "" until it is complete.
  const std::string& name() const { return name_; }
  const std::string& arguments() const { return arguments_; }  // as written; a string of JSON in place of an object too

 private:
  enum class State { kOpen, kKeyOrEnd, kKey, kColon, kValueStart, kValue };

  JsonProgress start_value(char c);
  JsonProgress in_value(char c);
  void end_value();

  const CallFormat* format_;
  State state_ = State::kOpen;
  int level_ = 0;  // 1 in the outermost object, 2 in the wrapper's
  bool escaped_ = false;
  std::string key_;
  std::string value_;    // of the key, unless it is the arguments
  bool scalar_ = false;  // the value has neither brackets nor quotation marks
  JsonEnd end_;
  std::string name_, arguments_;
};

}  // namespace kvasir
