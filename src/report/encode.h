// Encodes the data block of a report: the JSON that web/report/*.js reads.
//
//   {"title", "subtitle", "sections": [{"title", "text", "blocks": [BLOCK...]}]}
//   BLOCK: {"type": "paragraph" | "line" | "bar" | "heatmap" | "table" | "tokens", ...}, members named as in report.h
//
// Numbers are rounded (see report.h), null where not finite. Arrays of floats (heat maps, tokens) are base64 of three
// bytes per value: the upper 24 bits of an IEEE 754 binary32, rounded to nearest, least significant byte first; NaN
// where not finite. That is four characters per value, a third of what decimal digits would take.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "report/report.h"

namespace kvasir::report {

// Errors: kInvalidArgument, as render_report.
Result<nlohmann::ordered_json> encode(const Report& report);

nlohmann::ordered_json encode_number(double value);
std::string encode_floats(std::span<const float> values);

}  // namespace kvasir::report
