#include "tasks/item_file.h"

#include <csv.h>
#include <fmt/core.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/counted.h"
#include "base/mapped_file.h"
#include "base/ordered_json.h"
#include "base/status.h"
#include "tasks/messages.h"
#include "text/text_kind.h"
#include "text/utf8.h"

namespace kvasir {
namespace {

using Json = nlohmann::ordered_json;

constexpr OrderedJsonLimits kLimits{.levels = 32};

Result<Json> parse(std::string_view text) {
  ParsedOrderedJson parsed = parse_ordered_json(text, kLimits);
  if (parsed.end == ParsedOrderedJson::End::kTooDeep)
    return data_loss("it is nested deeper than {} levels", kLimits.levels);
  if (parsed.end != ParsedOrderedJson::End::kDone) return data_loss("{}", json_reason(parsed.error));
  return std::move(parsed.value);
}

// Returns a parser's message without the number of the line, which is 1 of one.
std::string without_line(std::string message) {
  constexpr std::string_view kLine = "at line 1, ";
  if (const std::size_t at = message.find(kLine); at != std::string::npos) message.replace(at, kLine.size(), "at ");
  return message;
}

Status read_lines(std::string_view text, std::vector<Json>* items, std::vector<std::size_t>* numbers) {
  std::size_t number = 0;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    Result<Json> item = parse(line);
    if (!item.ok()) return data_loss("line {} is no JSON: {}", number, without_line(item.status().message()));
    items->push_back(std::move(*item));
    numbers->push_back(number);
  }
  return {};
}

// `names`: of the items of an object of objects.
Status read_json(std::string_view text, std::vector<Json>* items, std::vector<std::string>* names) {
  KVASIR_ASSIGN_OR_RETURN(Json whole, parse(text));
  for (const char* field : {"data", "examples"})
    if (whole.is_object() && whole.contains(field) && whole[field].is_array()) {
      Json list = std::move(whole[field]);
      whole = std::move(list);
    }
  if (whole.is_object())
    for (auto& [name, item] : whole.items()) {
      if (item.is_object() && !item.contains("id")) item["id"] = name;
      names->push_back(name);
    }
  if (!whole.is_structured()) return data_loss("it is neither a list nor an object");
  for (Json& item : whole) items->push_back(std::move(item));
  return {};
}

constexpr std::size_t kMostColumns = 256;

// Collects the rows of a CSV file as objects.
struct Rows {
  std::vector<std::string> columns;
  std::vector<std::string> row;
  std::vector<Json> items;
  std::vector<std::size_t> numbers;  // of the items' rows
  std::string wrong;                 // what is wrong with the first wrong row
  std::size_t number = 0;

  static void field(void* bytes, std::size_t size, void* rows) {
    static_cast<Rows*>(rows)->row.emplace_back(static_cast<const char*>(bytes), size);
  }
  static void end(int, void* rows) { static_cast<Rows*>(rows)->end_row(); }

  void end_row() {
    ++number;
    std::vector<std::string> fields = std::exchange(row, {});
    if (columns.empty()) {
      if (fields.size() > kMostColumns && wrong.empty())
        wrong = fmt::format("it has {} columns; there may be {}", fields.size(), kMostColumns);
      columns = std::move(fields);
      return;
    }
    if (!wrong.empty() || (number == 1 && fields == columns)) return;
    if (fields.size() != columns.size()) {
      wrong = fmt::format("row {} has {} for {}", number, counted(std::ssize(fields), "field"),
                          counted(std::ssize(columns), "column"));
      return;
    }
    Json item = Json::object();
    for (std::size_t i = 0; i < fields.size(); ++i) item[columns[i]] = std::move(fields[i]);
    items.push_back(std::move(item));
    numbers.push_back(number);
  }
};

// Lines of a text, from 1.
struct Quotes {
  std::size_t line = 1;    // of its end
  std::size_t opened = 0;  // in which the last quoted field begins
};

Quotes quotes_in(std::string_view text) {
  Quotes quotes;
  bool open = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n') ++quotes.line;
    if (text[i] != '"') continue;
    if (open && text.substr(i + 1).starts_with('"')) {
      ++i;  // two stand for one
      continue;
    }
    open = !open;
    if (open) quotes.opened = quotes.line;
  }
  return quotes;
}

// Returns what is wrong with the quotes of a CSV text. `end`: the byte that no rule allows, or its size.
Status wrong_quotes(std::string_view text, std::size_t end) {
  const Quotes quotes = quotes_in(text.substr(0, end));
  if (end == text.size()) return data_loss("the quote that opens in line {} is never closed", quotes.opened);
  if (text[end] == '"')
    return data_loss(
        "line {} has a quote in a field that begins without one; quote that field, and write its quotes twice",
        quotes.line);
  return data_loss(
      "the quote that opens in line {} is closed in line {}, where neither a comma nor a line end follows; write a "
      "quote "
      "in a field twice",
      quotes.opened, quotes.line);
}

Status read_csv(std::string_view text, const std::vector<std::string>& columns, std::vector<Json>* items,
                std::vector<std::size_t>* numbers) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  if (const auto at = find_invalid_utf8(text))
    return data_loss("it is not valid UTF-8 at byte {}; convert it, for example with iconv -t UTF-8", *at);
  csv_parser parser{};
  if (csv_init(&parser, CSV_STRICT | CSV_STRICT_FINI) != 0) return exhausted("there is no memory to read it");
  const std::unique_ptr<csv_parser, void (*)(csv_parser*)> owner(&parser, csv_free);
  // Spaces are part of a field.
  csv_set_space_func(&parser, [](unsigned char) { return 0; });
  Rows rows;
  rows.columns = columns;
  const std::size_t end = csv_parse(&parser, text.data(), text.size(), Rows::field, Rows::end, &rows);
  if (end < text.size() || csv_fini(&parser, Rows::field, Rows::end, &rows) != 0) {
    if (csv_error(&parser) == CSV_EPARSE) return wrong_quotes(text, end);
    return data_loss("after row {}: {}", rows.number, csv_strerror(csv_error(&parser)));
  }
  if (!rows.wrong.empty()) return data_loss("{}", rows.wrong);
  *items = std::move(rows.items);
  *numbers = std::move(rows.numbers);
  return {};
}

}  // namespace

Result<ItemFile> ItemFile::open(const std::string& path, const std::vector<std::string>& columns) {
  KVASIR_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  return parse({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, path, columns);
}

Result<ItemFile> ItemFile::parse(std::string_view text, const std::string& name,
                                 const std::vector<std::string>& columns) {
  ItemFile items;
  Status status = check_text_kind(text, "it");
  if (!status.ok()) {
    // The end of its name does not count.
  } else if (name.ends_with(".jsonl")) {
    status = read_lines(text, &items.items_, &items.numbers_);
  } else if (name.ends_with(".json")) {
    status = read_json(text, &items.items_, &items.names_);
    items.kind_ = items.names_.empty() ? Kind::kList : Kind::kNames;
  } else if (name.ends_with(".csv")) {
    status = read_csv(text, columns, &items.items_, &items.numbers_);
    items.kind_ = Kind::kRows;
  } else {
    status = invalid_argument("the name must end in .jsonl, .json or .csv");
  }
  if (status.ok() && items.items_.empty()) status = invalid_argument("there are no items in it");
  if (!status.ok()) return status.with_message(one_line(fmt::format("'{}': {}", name, status.message())));
  return items;
}

std::string ItemFile::place(std::size_t index) const {
  switch (kind_) {
    case Kind::kLines: return fmt::format("line {}", numbers_[index]);
    case Kind::kRows: return fmt::format("row {}", numbers_[index]);
    case Kind::kList: return fmt::format("item {}", index + 1);
    case Kind::kNames: break;
  }
  return fmt::format("item '{}'", names_[index].substr(0, 64));
}

}  // namespace kvasir
