#include "base/ordered_json.h"

#include <unordered_map>
#include <utility>
#include <vector>

namespace kvasir {
namespace {

using Json = nlohmann::ordered_json;
using End = ParsedOrderedJson::End;

constexpr std::size_t kFewKeys = 16;  // of an object, among which a key is found faster without a table

class Reader final : public nlohmann::json_sax<Json> {
 public:
  Reader(const OrderedJsonLimits& limits, ParsedOrderedJson& result) : limits_(limits), result_(result) {}

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& /*value*/) override { return false; }
  bool start_object(std::size_t /*size*/) override { return open(Json::object()); }
  bool start_array(std::size_t /*size*/) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& value) override {
    if (++keys_ > limits_.keys) return stop(End::kTooManyKeys);
    if (limits_.unique && has(open_.back(), value)) {
      result_.error = std::move(value);
      return stop(End::kRepeatedKey);
    }
    open_.back().key = std::move(value);
    return true;
  }

  bool parse_error(std::size_t /*at*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    result_.error = error.what();
    result_.error_id = error.id;
    return stop(End::kMalformed);
  }

 private:
  struct Container {
    Json value;
    std::string key;                                        // of the next member
    std::unordered_map<std::string, std::ptrdiff_t> index;  // of the members, once they are more than a few
  };

  bool stop(End end) {
    result_.end = end;
    return false;
  }

  bool open(Json value) {
    if (open_.size() >= limits_.levels) return stop(End::kTooDeep);
    open_.emplace_back().value = std::move(value);
    return true;
  }

  bool close() {
    Json value = std::move(open_.back().value);
    open_.pop_back();
    return add(std::move(value));
  }

  bool add(Json value) {
    if (open_.empty()) {
      result_.value = std::move(value);
    } else if (Container& container = open_.back(); container.value.is_array()) {
      container.value.push_back(std::move(value));
    } else {
      add_member(container, std::move(value));
    }
    return true;
  }

  static bool has(const Container& container, const std::string& key) {
    return container.index.empty() ? container.value.contains(key) : container.index.contains(key);
  }

  static void add_member(Container& container, Json value) {
    auto& members = container.value.get_ref<Json::object_t&>();
    if (members.size() < kFewKeys) {
      container.value[container.key] = std::move(value);
      return;
    }
    if (container.index.empty())
      for (auto each = members.begin(); each != members.end(); ++each)
        container.index.emplace(each->first, each - members.begin());
    const auto [found, added] = container.index.try_emplace(container.key, static_cast<std::ptrdiff_t>(members.size()));
    if (added) {
      members.emplace_back(std::move(container.key), std::move(value));
    } else {
      (members.begin() + found->second)->second = std::move(value);
    }
  }

  const OrderedJsonLimits limits_;
  ParsedOrderedJson& result_;
  std::vector<Container> open_;
  std::size_t keys_ = 0;
};

}  // namespace

ParsedOrderedJson parse_ordered_json(std::string_view text, const OrderedJsonLimits& limits) {
  ParsedOrderedJson result;
  Reader reader(limits, result);
  Json::sax_parse(text, &reader);
  if (result.end != End::kDone) result.value = Json(Json::value_t::discarded);
  return result;
}

std::string dump_line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace kvasir
