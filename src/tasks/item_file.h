// Reads the items of a benchmark's own file: .jsonl, .json or .csv.
// Thread-safety: an ItemFile is immutable.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"

namespace kvasir {

class ItemFile {
 public:
  // Opens a file by the end of its name. `columns`: names of a CSV file's columns, with or without a first row that
  // has them; empty: its first row has them.
  //   .jsonl  one object a line; empty lines are skipped
  //   .json   a list of objects, an object with a list of them in "data" or "examples", or an object of objects, whose
  //           names become their "id"
  //   .csv    comma-separated values, quoted as in RFC 4180
  // Errors, each naming the file: kInvalidArgument for another kind of file (check_text_kind(), too) and for one
  // without items, kDataLoss for what cannot be parsed, with its line; those of opening it.
  static Result<ItemFile> open(const std::string& path, const std::vector<std::string>& columns);

  // Reads `text` as the file `name` that holds it. Errors: as open().
  static Result<ItemFile> parse(std::string_view text, const std::string& name,
                                const std::vector<std::string>& columns);

  std::size_t size() const { return items_.size(); }
  // REQUIRES: index < size().
  const nlohmann::ordered_json& item(std::size_t index) const { return items_[index]; }
  // Returns where the item is, for messages: "line 3", "row 3" (of a CSV file, a row of names counted too), "item 3"
  // (of a list, from 1) or "item 'name'". REQUIRES: index < size().
  std::string place(std::size_t index) const;

 private:
  enum class Kind { kLines, kRows, kList, kNames };
  Kind kind_ = Kind::kLines;
  std::vector<nlohmann::ordered_json> items_;
  std::vector<std::size_t> numbers_;  // [size()]: of lines or rows, from 1; of kList and kNames empty
  std::vector<std::string> names_;    // [size()] of kNames
};

}  // namespace kvasir
