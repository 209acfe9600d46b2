// Parses JSON whose keys stay in order, in time that is linear in its size: nlohmann::ordered_json::parse compares each
// key with all before it.
// Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace kvasir {

struct OrderedJsonLimits {
  std::size_t levels = std::numeric_limits<std::size_t>::max();
  std::size_t keys = std::numeric_limits<std::size_t>::max();  // of all objects together
  bool unique = false;                                         // refuses a key that its object has already
};

struct ParsedOrderedJson {
  enum class End { kDone, kMalformed, kTooDeep, kTooManyKeys, kRepeatedKey };
  End end = End::kDone;
  nlohmann::ordered_json value;  // discarded unless kDone
  std::string error;             // of kMalformed: what the parser says; of kRepeatedKey: the key
  int error_id = 0;              // of its exception
};

// A key that an object has twice keeps its last value, in the place of the first, unless the limits refuse it.
ParsedOrderedJson parse_ordered_json(std::string_view text, const OrderedJsonLimits& limits = {});

// Returns the JSON in one line; invalid UTF-8 in it becomes U+FFFD.
std::string dump_line(const nlohmann::ordered_json& json);

}  // namespace kvasir
