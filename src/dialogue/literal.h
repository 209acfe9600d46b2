// Values in the notations in which models write arguments, and JSON.
// Thread-safety: pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace kvasir {

// JSON with a space behind each comma and colon, as Python's json.dumps writes it and most models read it.
std::string spaced_json(const nlohmann::ordered_json& value);

// Python: key='text', other=[1, True]. Returns an object of the keyword arguments; nothing if `text` is not a list of
// them, or nests deeper than 64.
std::optional<nlohmann::ordered_json> parse_python_arguments(std::string_view text);
std::string python_arguments(const nlohmann::ordered_json& object);

// Gemma 4: {key:<|"|>text<|"|>,other:[1,true]}.
std::optional<nlohmann::ordered_json> parse_gemma_literal(std::string_view text);
std::string gemma_literal(const nlohmann::ordered_json& value);

// Whether a key can stand without quotation marks in both notations.
bool is_bare_key(std::string_view key);

// A single value: JSON, or Python's True, False and None; nothing if it is neither.
std::optional<nlohmann::ordered_json> parse_value(std::string_view text);

// Returns the offset behind the bracket that closes the one `text` begins with, skipping strings; npos if it is not
// there. Strings stand between quotation marks, of Python (`gemma` is false), or of JSON and <|"|>.
std::size_t find_closing(std::string_view text, bool gemma);

}  // namespace kvasir
