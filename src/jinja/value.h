// Values of a template: what Python has, as far as templates use it.
//
// Strings, lists and dictionaries never change once they are made, as in jinja2's immutable sandbox; only the
// attributes of a Namespace do. Copies share what they refer to.
// Thread-safety: values of the caller may be shared by renders on several threads; those that a render makes stay
// there.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "jinja/text.h"

namespace kvasir::jinja {

class Value;
struct Namespace;
struct Callable;

// The name of what is undefined, for messages.
struct Undefined {
  std::shared_ptr<const std::string> name;
};

// Memory that counts while it lives. Values of the caller have no budget.
struct Budget {
  std::size_t used = 0;
  std::size_t limit = 0;
};
class Charge {
 public:
  Charge() = default;
  Charge(Budget* budget, std::size_t bytes) : budget_(budget), bytes_(bytes) { budget_->used += bytes; }
  Charge(Charge&& other) noexcept
      : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Charge& operator=(Charge&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Charge() {
    if (budget_ != nullptr) budget_->used -= bytes_;
  }

 private:
  Budget* budget_ = nullptr;
  std::size_t bytes_ = 0;
};

struct String {
  Text text;
  Charge charge;
};

struct List {
  enum class Form { kList, kTuple, kRange, kKeys, kValues, kItems, kIterator };
  Form form = Form::kList;
  std::vector<Value> items;
  int depth = 1;               // of nested containers, this included
  mutable bool spent = false;  // kIterator: it has been iterated, and is empty now. Only ever made by a render.
  Charge charge;
};

struct Dict {
  std::vector<std::pair<Value, Value>> items;  // in order of insertion, keys distinct
  int depth = 1;
  Charge charge;
};

class Value {
 public:
  using Data = std::variant<Undefined, std::nullptr_t, bool, std::int64_t, double, std::shared_ptr<const String>,
                            std::shared_ptr<const List>, std::shared_ptr<const Dict>, std::shared_ptr<Namespace>,
                            std::shared_ptr<const Callable>>;

  Value() = default;                            // undefined
  Value(Data data) : data_(std::move(data)) {}  // NOLINT(google-explicit-constructor)
  static Value none() { return Data(nullptr); }
  static Value boolean(bool value) { return Data(value); }
  static Value integer(std::int64_t value) { return Data(value); }
  static Value real(double value) { return Data(value); }
  // Strings of the caller, unless `origin` says that the program vouches for every byte, as for the text of BOS.
  static Value string(std::string_view bytes, Origin origin = Origin::kCaller);
  static Value list(std::vector<Value> items);
  // REQUIRES: the keys are distinct.
  static Value dict(std::vector<std::pair<std::string, Value>> items);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<std::nullptr_t>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<std::int64_t>(data_); }
  bool is_real() const { return std::holds_alternative<double>(data_); }
  // As in Python, a bool is a number.
  bool is_integral() const { return is_int() || is_bool(); }
  bool is_number() const { return is_integral() || is_real(); }

  // Null if the value is of another kind.
  const Text* text() const { return peek<String>() ? &peek<String>()->text : nullptr; }
  const List* list() const { return peek<List>(); }
  const Dict* dict() const { return peek<Dict>(); }
  const Callable* callable() const { return peek<Callable>(); }
  Namespace* space() const {
    const auto* held = std::get_if<std::shared_ptr<Namespace>>(&data_);
    return held ? held->get() : nullptr;
  }

  // REQUIRES: is_integral().
  std::int64_t as_int() const { return is_bool() ? std::get<bool>(data_) : std::get<std::int64_t>(data_); }
  // REQUIRES: is_number().
  double as_real() const { return is_real() ? std::get<double>(data_) : static_cast<double>(as_int()); }

  const Data& data() const { return data_; }
  // Python's name of the type, for messages.
  std::string_view type_name() const;
  // Containers nested in this value, itself included; 0 of a plain one. A namespace counts as 1.
  int depth() const;

 private:
  template <class T>
  const T* peek() const {
    const auto* held = std::get_if<std::shared_ptr<const T>>(&data_);
    return held ? held->get() : nullptr;
  }
  Data data_;
};

using Variables = std::vector<std::pair<std::string, Value>>;

struct Namespace {
  Variables attributes;
};

// Returns the value of `name`, or null.
const Value* find(const Variables& variables, std::string_view name);

}  // namespace kvasir::jinja
