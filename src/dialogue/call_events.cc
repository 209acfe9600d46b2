#include "dialogue/call_events.h"

#include "dialogue/literal.h"

namespace kvasir {
namespace {

using Kind = AnswerPiece::Kind;

}  // namespace

AnswerPiece& CallEvents::add(Kind kind) {
  AnswerPiece& piece = pieces_->emplace_back();
  piece.kind = kind;
  piece.call = calls_;
  return piece;
}

void CallEvents::text(Kind kind, std::string_view text) {
  if (text.empty()) return;
  if (pieces_->empty() || pieces_->back().kind != kind) add(kind);
  pieces_->back().text += text;
}

void CallEvents::begin(std::string_view name, std::string_view id) {
  AnswerPiece& piece = add(Kind::kCallBegins);
  const bool own = !id.empty() && ids_.emplace(id).second;
  piece.id = own ? std::string(id) : call_id(seed_, calls_, rules_->format.short_ids);
  piece.name = name;
  open_ = true;
  arguments_.clear();
}

void CallEvents::arguments(std::string_view text) {
  arguments_ += text;
  this->text(Kind::kArguments, text);
}

void CallEvents::end(std::string_view raw) {
  if (!has_all_arguments()) return fail(raw);
  add(Kind::kCallEnds).text = raw;
  open_ = false;
  ++calls_;
}

void CallEvents::break_off(std::string_view raw) {
  if (has_all_arguments()) return end(raw);
  add(Kind::kCallBreaks);
  open_ = false;
  ++calls_;
}

bool CallEvents::has_all_arguments() const {
  const auto json = parse_value(arguments_);
  return json && json->is_object() && nlohmann::json::accept(arguments_);
}

void CallEvents::fail(std::string_view raw) {
  add(Kind::kCallFails).text = raw;
  open_ = false;
}

}  // namespace kvasir
