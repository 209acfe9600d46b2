#include "server/api/samples.h"

#include <algorithm>

namespace kvasir::server {
namespace {

// The mean log-probability of the tokens, by which best_of chooses samples.
double mean_log_probability(const GenerateResult& result) {
  double sum = 0;
  for (const GeneratedToken& token : result.choices) sum += token.token.log_probability;
  return result.choices.empty() ? 0 : sum / static_cast<double>(result.choices.size());
}

}  // namespace

void Samples::begin(std::uint64_t seed) {
  parts_.resize(std::max<std::size_t>(1, request_.prompts.size()));
  const auto samples = static_cast<std::size_t>(request_.request.options.samples);
  for (Part& part : parts_) part.samples.resize(samples);
  left_ = parts_.size() * samples;
  for (std::size_t part = 0; part < request_.prompts.size(); ++part)
    if (const AnswerForm* form = request_.prompts[part].prompt.answer.get(); form != nullptr)
      for (Sample& sample : parts_[part].samples) sample.parser = form->parser(++seed);
}

std::vector<AnswerPiece> Samples::read(Sample& sample, std::string_view text, bool ends) {
  std::vector<AnswerPiece> pieces;
  if (!text.empty()) sample.parser->push(text, pieces);
  if (ends) sample.parser->finish(pieces);
  for (const AnswerPiece& piece : pieces) sample.answer.add(piece);
  return pieces;
}

void Samples::end(Sample& sample, const GenerateResult& result) {
  sample.result = result;
  --left_;
}

Choice Samples::choice_of(std::size_t part, std::size_t sample) const {
  Choice choice;
  choice.index = static_cast<int>(part) * request_.request.n + static_cast<int>(sample);
  choice.result = &parts_[part].samples[sample].result;
  if (parts_[part].samples[sample].parser != nullptr) choice.answer = &parts_[part].samples[sample].answer;
  if (part < request_.prompts.size()) {
    choice.echo = request_.prompts[part].echo;
    choice.pieces = request_.prompts[part].pieces;
    choice.prompt_ids = request_.prompts[part].ids;
    choice.most_tokens = request_.prompts[part].most_tokens;
  }
  if (request_.request.usage_in_chunks) choice.usage = usage();
  if (choice.most_tokens < 0 && !request_.request.token_limit_given)
    choice.most_tokens = request_.request.options.generate.max_tokens;
  return choice;
}

std::vector<Choice> Samples::all_choices() const {
  std::vector<Choice> all;
  for (std::size_t part = 0; part < parts_.size(); ++part)
    for (std::size_t sample = 0; sample < parts_[part].samples.size(); ++sample) all.push_back(choice_of(part, sample));
  return all;
}

std::vector<Choice> Samples::best_choices() const {
  std::vector<Choice> best;
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    std::vector<std::size_t> order(parts_[part].samples.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    if (std::ssize(order) > request_.request.n)
      std::ranges::stable_sort(order, std::ranges::greater(), [&](std::size_t sample) {
        return mean_log_probability(parts_[part].samples[sample].result);
      });
    for (std::size_t place = 0; place < static_cast<std::size_t>(request_.request.n); ++place) {
      best.push_back(choice_of(part, order[place]));
      best.back().index = static_cast<int>(part) * request_.request.n + static_cast<int>(place);
    }
  }
  return best;
}

Usage Samples::usage() const {
  Usage usage;
  for (const Part& part : parts_) {
    usage.prompt += std::max(part.samples.front().result.prompt_tokens, part.prompt_read);
    usage.cached += part.samples.front().result.cached;
    for (const Sample& sample : part.samples) {
      usage.completion += std::max(sample.result.tokens, sample.tokens);
      usage.thoughts += sample.result.thought_tokens;
    }
  }
  return usage;
}

}  // namespace kvasir::server
