// qa_1 and qa_2: questions about documents on people, towns and works that do not exist.
#include <algorithm>

#include "tasks/generated/recipe.h"
#include "tasks/generated/words.h"

namespace kvasir::generated {
namespace {

constexpr std::string_view kNameBegins[] = {"Al",  "Bel", "Cor", "Dar", "El",  "Fen",  "Gal",  "Har",  "Ing", "Jor",
                                            "Kel", "Lor", "Mar", "Nor", "Or",  "Per",  "Quil", "Ros",  "Sel", "Tam",
                                            "Ul",  "Ver", "Wil", "Yar", "Zel", "Bran", "Cas",  "Drav", "Hol", "Thal"};
constexpr std::string_view kNameMiddles[] = {"a", "e", "i", "o", "u", "ari", "eno", "imo", "ola", "uri", "ana", "ere"};
constexpr std::string_view kNameEnds[] = {"n",   "l",   "m",   "r",   "th",   "sk",  "nd",  "nne",
                                          "lle", "rin", "vic", "dor", "mund", "wen", "las", "ster"};
constexpr std::string_view kTownEnds[] = {"ford",  "wick", "mouth", "holm", "stead",  "bury",
                                          "haven", "dale", "combe", "ness", "thorpe", "minster"};
constexpr std::string_view kTrades[] = {"painter",   "clockmaker",  "botanist",   "surveyor",   "printer",
                                        "physician", "glassblower", "astronomer", "bookbinder", "composer"};
constexpr std::string_view kForms[] = {"novel", "play", "poem", "travel book", "collection of letters"};

std::string draw_name(Draws* draws) {
  std::string name(draws->pick(kNameBegins));
  name += draws->pick(kNameMiddles);
  return name += draws->pick(kNameEnds);
}

std::string draw_person(Draws* draws) {
  const std::string first = draw_name(draws);
  return first + " " + draw_name(draws);
}

std::string draw_town(Draws* draws) {
  std::string name(draws->pick(kNameBegins));
  name += draws->pick(kNameMiddles);
  return name += draws->pick(kTownEnds);
}

std::string with_article(const std::string& words) {
  return (std::string_view("aeio").find(words.front()) != std::string_view::npos ? "an " : "a ") + words;
}

std::string draw_thing(Draws* draws) {
  std::string text(draws->pick(adjectives()));
  text += ' ';
  return text += draws->pick(nouns());
}

std::string draw_title(Draws* draws) {
  std::string title = "The " + draw_thing(draws);
  title[4] = static_cast<char>(title[4] - 'a' + 'A');
  const std::size_t noun = title.find(' ', 4) + 1;
  title[noun] = static_cast<char>(title[noun] - 'a' + 'A');
  return title;
}

std::string draw_year(Draws* draws) {
  return std::to_string(draws->between(1600, 1899));
}

struct Document {
  std::string title;
  std::vector<std::string> sentences;
};

struct Person {
  std::string name, year, town;
};
struct Town {
  std::string name, river, founder;
};
struct Work {
  std::string title, author;
};

Document describe(const Person& person, Draws* draws) {
  const std::string& name = person.name;
  const std::string trade(draws->pick(kTrades));
  Document made{
      name,
      {name + " was " + with_article(trade) + " who was born in " + person.town + " in the year " + person.year + "."}};
  made.sentences.push_back(name + " learned the trade from " + draw_person(draws) + ".");
  made.sentences.push_back("A letter that " + name + " wrote to a friend describes " + with_article(draw_thing(draws)) +
                           ".");
  made.sentences.push_back("The house of " + name + " was known for its " + draw_thing(draws) + ".");
  made.sentences.push_back("Late in life " + name + " gave everything away except " + with_article(draw_thing(draws)) +
                           ".");
  return made;
}

Document describe(const Town& town, Draws* draws) {
  const std::string& name = town.name;
  Document made{name, {name + " is a town on the river " + town.river + "; it was founded by " + town.founder + "."}};
  made.sentences.push_back("About " + std::to_string(draws->between(2, 90)) + "00 people live in " + name + ".");
  made.sentences.push_back("The arms of " + name + " show " + with_article(draw_thing(draws)) + ".");
  made.sentences.push_back("In the year " + draw_year(draws) + " a fire destroyed the market of " + name + ".");
  made.sentences.push_back("Visitors come to " + name + " for its " + draw_thing(draws) + ".");
  return made;
}

Document describe(const Work& work, Draws* draws) {
  const std::string quoted = "\"" + work.title + "\"";
  const std::string form(draws->pick(kForms));
  Document made{work.title, {quoted + " is a " + form + " by " + work.author + "."}};
  made.sentences.push_back("It was printed for the first time in the year " + draw_year(draws) + ".");
  made.sentences.push_back("It begins with the loss of " + with_article(draw_thing(draws)) + ".");
  made.sentences.push_back("Readers of " + quoted + " still argue about the " + draw_thing(draws) + ".");
  made.sentences.push_back("The only copy was kept beside " + with_article(draw_thing(draws)) + " for many years.");
  return made;
}

Document draw_document(Draws* draws) {
  // Each draw is a statement of its own: among arguments of one call their order would be unspecified.
  const std::int64_t kind = draws->below(3);
  const std::string person = draw_person(draws);
  const std::string town = draw_town(draws);
  if (kind == 0) return describe(Person{person, draw_year(draws), town}, draws);
  if (kind == 1) return describe(Town{town, draw_name(draws), person}, draws);
  return describe(Work{draw_title(draws), person}, draws);
}

struct Question {
  std::string text;
  std::string answer;
  std::vector<Document> documents;    // all that are needed for the answer
  std::vector<std::string> subjects;  // what no other document may be about
};

Question draw_question(bool two_hops, Draws* draws) {
  const std::int64_t kind = draws->below(two_hops ? 3 : 5);
  Person person{draw_person(draws), draw_year(draws), draw_town(draws)};
  const Work work{draw_title(draws), person.name};
  Town town{person.town, draw_name(draws), draw_person(draws)};
  Question made;
  made.subjects = {person.name, person.town, work.title};
  if (two_hops) {
    switch (kind) {
      case 0:
        made.text = "In which town was the author of \"" + work.title + "\" born?";
        made.answer = person.town;
        made.documents = {describe(work, draws), describe(person, draws)};
        break;
      case 1:
        made.text = "On which river is the town in which " + person.name + " was born?";
        made.answer = town.river;
        made.documents = {describe(person, draws), describe(town, draws)};
        break;
      default:
        town.name = draw_town(draws);
        while (town.name == person.town) town.name = draw_town(draws);
        town.founder = person.name;
        made.subjects.push_back(town.name);
        made.text = "In which year was the founder of " + town.name + " born?";
        made.answer = person.year;
        made.documents = {describe(town, draws), describe(person, draws)};
    }
    return made;
  }
  switch (kind) {
    case 0:
      made.text = "In which year was " + person.name + " born?";
      made.answer = person.year;
      break;
    case 1:
      made.text = "In which town was " + person.name + " born?";
      made.answer = person.town;
      break;
    case 2:
      made.text = "On which river is the town of " + town.name + "?";
      made.answer = town.river;
      break;
    case 3:
      made.text = "Who founded the town of " + town.name + "?";
      made.answer = town.founder;
      break;
    default: made.text = "Who is the author of \"" + work.title + "\"?"; made.answer = work.author;
  }
  made.documents.push_back(kind < 2   ? describe(person, draws)
                           : kind < 4 ? describe(town, draws)
                                      : describe(work, draws));
  return made;
}

struct PlacedDocument {
  std::uint64_t place = 0;
  std::string text;
};

std::string document_text(const Document& document, std::size_t sentences, bool titled) {
  std::string text = titled ? document.title + "\n" : "";
  for (std::size_t i = 0; i < sentences; ++i) text += (i == 0 ? "" : " ") + document.sentences[i];
  return text;
}

// Returns the documents of the question among others that have `sentences` sentences together.
std::string placed_documents(const Question& question, bool titled, std::uint64_t seed, std::int64_t sentences) {
  std::vector<PlacedDocument> all;
  for (std::size_t i = 0; i < question.documents.size(); ++i) {
    Draws draws = Draws::of_part(seed, -1 - static_cast<std::int64_t>(i));
    const Document& document = question.documents[i];
    all.push_back({draws.next(), document_text(document, document.sentences.size(), titled)});
  }
  for (std::int64_t i = 0; sentences > 0; ++i) {
    Draws draws = Draws::of_part(seed, i);
    const std::uint64_t place = draws.next();
    Document document = draw_document(&draws);
    while (std::ranges::find(question.subjects, document.title) != question.subjects.end())
      document = draw_document(&draws);
    const auto size = std::min(static_cast<std::int64_t>(document.sentences.size()), sentences);
    all.push_back({place, document_text(document, static_cast<std::size_t>(size), titled)});
    sentences -= size;
  }
  std::ranges::stable_sort(all, {}, &PlacedDocument::place);
  std::string text;
  for (std::size_t i = 0; i < all.size(); ++i)
    text += (i == 0 ? "" : "\n\n") + ("Document " + std::to_string(i + 1)) + ":\n" + all[i].text;
  return text;
}

}  // namespace

Recipe documents(bool two_hops, ItemInput input) {
  const std::string ask =
      "Answer the question based on the given documents. Only give me the answer and do not output any other words.";
  Question question = draw_question(two_hops, &input.draws);
  return {[=, seed = input.draws.next()](std::int64_t sentences) {
    return Prompt{
        ask + "\n\nThe following are given documents.\n\n" + placed_documents(question, two_hops, seed, sentences),
        {{"\n\n" + ask + "\n\nQuestion: " + question.text, " Answer:", {question.answer}}}};
  }};
}

}  // namespace kvasir::generated
