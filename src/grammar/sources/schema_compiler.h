// Turns sets of schemas into expressions; json_schema() is the entry for whole schemas.
// Thread-safety: none.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar/automata/builder.h"
#include "grammar/sources/json_text.h"
#include "grammar/sources/schema_set.h"
#include "kvasir/status.h"

namespace kvasir::grammar {

// What a property of an object must meet, or an item of an array.
struct Child {
  SchemaSet set;
  bool never = false;
};

class SchemaCompiler {
 public:
  // All must outlive this; `root`: the whole schema, to which references lead; it stays unchanged. `steps`: as in
  // SchemaDocument.
  SchemaCompiler(JsonText& text, const OrderedJson& root, std::size_t& steps)
      : text_(text), builder_(text.builder()), document_(root, steps, builder_.stop()) {}

  // Returns what all values match that meet a set of schemas, each of which must outlive this. Errors: as
  // json_schema(), without about().
  Result<Expr> value(SchemaSet set);

  // Returns ": " and the first reason why a schema within the whole is met by no value, and where it is; "" without.
  const std::string& contradiction() const { return contradiction_; }

 private:
  struct Property {
    std::string name;
    Expr member;  // the whole member, key and value
    bool required = false;
  };

  // Returns what no value meets, and notes why.
  Expr never(const OrderedJson* schema, std::string_view why);
  Result<Expr> body(const FlatSchemas& flat);
  Result<std::optional<Expr>> alternatives(const FlatSchemas& flat);
  Result<std::optional<Expr>> constants(const FlatSchemas& flat);
  Result<Expr> number(const FlatSchemas& flat);
  Result<Expr> string(const FlatSchemas& flat);
  Result<Expr> string_text(const FlatSchemas& flat);
  Result<Expr> array(const FlatSchemas& flat);
  Result<Expr> object(const FlatSchemas& flat);
  Child item(const FlatSchemas& flat, std::size_t index) const;
  // For each schema of a set its properties by name.
  using Listed = std::vector<std::unordered_map<std::string_view, const OrderedJson*>>;
  Result<Listed> listed_properties(const FlatSchemas& flat);
  Result<Child> property(const FlatSchemas& flat, const Listed& listed, const std::string& name);
  Result<std::optional<Expr>> other_members(const FlatSchemas& flat, const std::vector<std::string>& names);
  Result<std::vector<std::string>> named_keys(const FlatSchemas& flat);
  Result<Expr> members(const std::vector<Property>& properties, std::optional<Expr> other, int least,
                       std::optional<int> most);
  Expr object_end() { return builder_.sequence({text_.space(), builder_.literal("}")}); }
  Result<Expr> pattern(const OrderedJson& pattern);

  JsonText& text_;
  Builder& builder_;
  SchemaDocument document_;
  std::map<SchemaSet, Rule> rules_;
  int depth_ = 0;
  std::string contradiction_;
};

// Returns the largest of the numbers that a keyword has in several schemas, or the smallest.
std::optional<int> count_of(const FlatSchemas& flat, std::string_view name, bool largest);

}  // namespace kvasir::grammar
