#include "generation/thought_meter.h"

#include <algorithm>
#include <utility>

namespace kvasir {
namespace {

constexpr std::string_view kSpaces = " \t\r\n";
constexpr std::size_t kLongestCharacter = 4;  // bytes

// Returns the length of the longest end of `text` with which `mark` begins without being complete.
std::size_t begun(std::string_view text, std::string_view mark) {
  for (std::size_t size = std::min(text.size(), mark.size() - 1); size > 0; --size)
    if (text.ends_with(mark.substr(0, size))) return size;
  return 0;
}

}  // namespace

ThoughtMeter::ThoughtMeter(std::shared_ptr<const ThoughtMarks> marks, std::int64_t budget)
    : marks_(std::move(marks)), budget_(budget), place_(marks_->opened ? Place::kInside : Place::kBefore) {}

void ThoughtMeter::read(std::string_view bytes, bool forced) {
  if (forced && ++closing_ == closing_tokens().size()) {
    closing_ = 0;
    closed_once_ = true;
  }
  const std::int64_t place = read_++;
  if (place_ == Place::kPast && !marks_->anywhere) return;
  if (inside()) ++spent_;
  pieces_.push_back({buffer_.size(), buffer_.size() + bytes.size(), place});
  buffer_ += bytes;
  while (step()) {
  }
}

bool ThoughtMeter::step() {
  return place_ == Place::kInside ? leave() : enter();
}

// Looks for the mark that opens thoughts. Returns whether to look on.
bool ThoughtMeter::enter() {
  const std::string& open = marks_->open;
  std::size_t at = std::string::npos;
  if (marks_->anywhere) {
    at = buffer_.find(open);
    if (at == std::string::npos) {
      forget(buffer_.size() - begun(buffer_, open));
      return false;
    }
  } else {
    forget(std::min(buffer_.find_first_not_of(kSpaces), buffer_.size()));
    if (buffer_.size() < open.size() && open.starts_with(buffer_)) return false;
    if (!buffer_.starts_with(open)) {
      place_ = Place::kPast;
      forget(buffer_.size());
      return false;
    }
    at = 0;
  }
  forget(at + open.size());
  place_ = Place::kInside;
  solid_ = false;
  newest_ = {};
  spaces_ = 0;
  spent_ += std::ssize(pieces_);
  return true;
}

// Looks for the mark that closes thoughts. Returns whether to look on.
bool ThoughtMeter::leave() {
  std::size_t at = std::string::npos, size = 0, partial = 0;
  for (const std::string& close : marks_->closes) {
    if (const std::size_t here = buffer_.find(close); here < at) {
      at = here;
      size = close.size();
    }
    partial = std::max(partial, begun(buffer_, close));
  }
  const bool closes = at != std::string::npos;
  const std::size_t dropped = count(closes ? at : buffer_.size() - partial);
  if (!closes) {
    forget_spaces(buffer_.size() - partial);
    return false;
  }
  at -= dropped;
  if (solid_ && !closed_) closed_ = newest_;
  spent_ -= std::ranges::count_if(pieces_, [at](const Piece& piece) { return piece.begin >= at; });
  // A mark that may be anywhere can itself begin the next thoughts.
  forget(marks_->anywhere ? at : at + size);
  place_ = marks_->anywhere ? Place::kPast : Place::kBefore;
  return true;
}

// Counts the tokens of the first `end` bytes, which are thoughts, but for white space at their end. Returns how many of
// the bytes it has dropped.
std::size_t ThoughtMeter::count(std::size_t end) {
  const std::string_view text = std::string_view(buffer_).substr(0, end);
  const std::size_t first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return 0;
  tokens_ += std::exchange(spaces_, 0);
  const std::size_t last = text.find_last_not_of(kSpaces);
  const auto counts = [&](const Piece& piece) { return piece.begin <= last && (solid_ || piece.end > first); };
  for (const Piece& piece : pieces_) {
    if (!counts(piece)) continue;
    if (newest_.end == 0) newest_.begin = piece.place;
    newest_.end = piece.place + 1;
    ++tokens_;
  }
  std::erase_if(pieces_, [last](const Piece& piece) { return piece.begin <= last; });
  solid_ = true;
  forget(last + 1);
  return last + 1;
}

// Drops the tokens that end within the first `size` bytes, which are white space inside thoughts.
void ThoughtMeter::forget_spaces(std::size_t size) {
  for (const Piece& piece : pieces_) {
    if (piece.end > size) {
      size = std::min(size, piece.begin);
    } else if (solid_) {
      ++spaces_;
    }
  }
  forget(size);
}

// Drops the first bytes, and the tokens that end with them.
void ThoughtMeter::forget(std::size_t size) {
  buffer_.erase(0, size);
  std::erase_if(pieces_, [size](const Piece& piece) { return piece.end <= size; });
  for (Piece& piece : pieces_) {
    piece.begin -= std::min(piece.begin, size);
    piece.end -= size;
  }
}

std::int64_t ThoughtMeter::tokens() const {
  if (!inside()) return tokens_;
  ThoughtMeter ended = *this;
  ended.count(buffer_.size());
  return ended.tokens_;
}

TokenId ThoughtMeter::due(bool mid_character) const {
  if (closing_ > 0) return closing_tokens()[closing_];
  if (budget_ < 0 || !inside() || marks_->closing.empty() || spent_ < budget_) return kNoToken;
  // Each token that completes something has a byte of it.
  std::size_t longest = 0;
  if (mid_character) longest = kLongestCharacter;
  if (!buffer_.empty()) longest = std::ranges::max(marks_->closes, {}, &std::string::size).size();
  return spent_ - budget_ + 1 < static_cast<std::int64_t>(longest) ? kNoToken : closing_tokens().front();
}

}  // namespace kvasir
