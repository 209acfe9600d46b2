#include "retention/demotion.h"

#include <fmt/core.h>

#include <charconv>
#include <utility>

#include "base/byte_size.h"
#include "base/status.h"

namespace kvasir {
namespace {

constexpr int kMostRecall = 8;

Status refuse_demotion(std::string_view text, std::string_view why) {
  return invalid_argument(
             "demote '{}': {}; give a codec (f16, q8, q4, q4o, q3, q2), 'file', or both as q4,file; then maybe "
             "recall=4 and, with both, memory=16MiB",
             text, why)
      .about({"demote"});
}

bool read_recall(std::string_view text, int& recall) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), recall);
  return error == std::errc() && end == text.data() + text.size() && recall >= 1 && recall <= kMostRecall;
}

}  // namespace

Result<Demotion> parse_demotion(std::string_view text) {
  Demotion demotion;
  bool any = false, recall = false, memory = false;
  for (std::string_view rest = text;;) {
    const std::size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    if (item == "file") {
      if (std::exchange(demotion.file, true)) return refuse_demotion(text, "'file' is given twice");
      any = true;
    } else if (item.starts_with("recall=")) {
      if (std::exchange(recall, true)) return refuse_demotion(text, "recall is given twice");
      if (!read_recall(item.substr(7), demotion.recall))
        return refuse_demotion(text, "recall is a number of pages from 1 to 8");
    } else if (item.starts_with("memory=")) {
      if (std::exchange(memory, true)) return refuse_demotion(text, "memory is given twice");
      const std::optional<std::uint64_t> bytes = parse_byte_size(item.substr(7));
      if (!bytes) return refuse_demotion(text, "memory is a size such as 16MiB");
      demotion.memory = *bytes;
    } else {
      const std::optional<KvType> type = kv_type_from_name(item);
      if (!type || *type == KvType::kF32 || *type == KvType::kBF16)
        return refuse_demotion(text, fmt::format("'{}' is no part of it", item));
      if (demotion.type) return refuse_demotion(text, "two codecs are given");
      if (demotion.file) return refuse_demotion(text, "a codec goes in front of 'file'");
      demotion.type = *type;
      any = true;
    }
    if (comma == std::string_view::npos) break;
    rest = rest.substr(comma + 1);
  }
  if (!any) return refuse_demotion(text, "it names no place for what is dropped");
  if (memory && !(demotion.file && demotion.type)) return refuse_demotion(text, "memory goes with a codec and 'file'");
  return demotion;
}

std::string demotion_text(const Demotion& demotion) {
  std::string text = demotion.type ? std::string(kv_type_name(*demotion.type)) : std::string();
  if (demotion.file) text += text.empty() ? "file" : ",file";
  if (demotion.recall != Demotion::kDefaultRecall) text += fmt::format(",recall={}", demotion.recall);
  if (demotion.memory != Demotion::kDefaultMemory) text += fmt::format(",memory={}", byte_size_text(demotion.memory));
  return text;
}

}  // namespace kvasir
