// Any text is an error with its place, or values in the order in which they stand; each text survives being written and
// read again.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "server/admin/config_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvasir;
  using server::ConfigValue;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto values = server::parse_config(text, "file.toml");
  if (!values.ok()) {
    KVASIR_CHECK(values.status().code() == StatusCode::kInvalidArgument);
    KVASIR_CHECK(values.status().message().starts_with("file.toml:"));
    return 0;
  }
  const ConfigValue* before = nullptr;
  for (const ConfigValue& value : *values) {
    KVASIR_CHECK(value.line >= 1 && value.column >= 1);
    KVASIR_CHECK(before == nullptr || before->line < value.line || before->column < value.column);
    const bool list = value.type == ConfigValue::Type::kTexts || value.type == ConfigValue::Type::kTables;
    KVASIR_CHECK(list || value.texts.size() == 1);
    KVASIR_CHECK((value.type == ConfigValue::Type::kTables) == !value.tables.empty());
    before = &value;
    if (value.type != ConfigValue::Type::kText) continue;
    const auto again = server::parse_config("again = " + server::toml_string(value.texts.front()), "again.toml");
    KVASIR_CHECK(again.ok() && again->size() == 1 && again->front().texts == value.texts);
  }
  return 0;
}
