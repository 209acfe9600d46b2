#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "chat/canonical_cursor.h"
#include "chat/template_readers.h"

namespace kvasir {
namespace {

using Terms = std::vector<TemplateTerm>;

// Returns the texts before and after `content` in a concatenation; nullopt if it has terms other than literals and EOS.
std::optional<ChatForm> form_around(const Terms& terms, std::string_view content, const TemplateNames& names) {
  ChatForm form;
  bool found = false;
  for (const TemplateTerm& term : terms) {
    std::string& side = found ? form.after : form.before;
    if (!term.literal && term.text == content && !found) {
      form.strip = term.strip;
      found = true;
      continue;
    }
    if (term.strip) return std::nullopt;
    if (term.literal) {
      side += term.text;
    } else if (term.text == "eos_token") {
      side += names.eos;
    } else {
      return std::nullopt;
    }
  }
  if (!found) return std::nullopt;
  return form;
}

// Replaces message.role by the name of a role.
Terms with_role(Terms terms, std::string_view role) {
  for (TemplateTerm& term : terms)
    if (!term.literal && term.text == "message.role" && !term.strip) term = {true, std::string(role), false};
  return terms;
}

// Reads a template from its start to its end, and gives up at the first part that is not known.
class GeneralReader {
 public:
  GeneralReader(std::string_view text, const TemplateNames& names) : cursor_(text), names_(names) {}

  std::optional<ChatFormat> read() {
    if (!read_start() || !read_loop() || !read_end() || !cursor_.at_end() || !settle_system()) return std::nullopt;
    return std::move(format_);
  }

 private:
  // Reads what comes before the loop over the messages.
  bool read_start() {
    format_.bos = cursor_.take("{{bos_token}}");
    bool dated = cursor_.take("{%set date_string='*'%}", {&date_});
    if (!dated && cursor_.take("{%set date_string=strftime_now('%d %b %Y')%}")) date_ = names_.today, dated = true;
    if (cursor_.take("{%if messages[0].role=='system'%}") && !read_system()) return false;
    if (dated && !read_dated_header()) return false;
    if (cursor_.take("{%set loop_messages=messages%}")) loop_ = "loop_messages";
    if (cursor_.take("{%set ns=namespace()%}{%set ns.index=0%}{%for message in " + loop_ +
                     "%}{%if (message.role=='user')!=(ns.index%2==0)%}{{raise_exception('*')}}{%endif%}"
                     "{%set ns.index=ns.index+1%}{%endfor%}"))
      format_.alternate = true;
    if (!format_.bos) format_.bos = cursor_.take("{{bos_token}}");
    return true;
  }

  // Reads what is done with a system message that starts the conversation.
  bool read_system() {
    if (cursor_.take("{{raise_exception('*')}}{%endif%}")) {
      refused_ = true;
      return true;
    }
    if (cursor_.take("{{")) return read_leading_system();
    bool sliced = false;
    bool named = false;
    for (;;) {
      if (cursor_.take("{%set loop_messages=messages[1:]%}")) {
        loop_ = "loop_messages";
        sliced = true;
      } else if (named && cursor_.take("{%set messages=messages[1:]%}")) {
        loop_ = "messages";
        sliced = true;
      } else if (cursor_.take("{%set system_message=messages[0].content|trim%}")) {
        strip_system_ = named = true;
      } else if (cursor_.take("{%set system_message=messages[0].content%}")) {
        strip_system_ = false;
        named = true;
      } else {
        break;
      }
    }
    split_ = sliced && named && read_no_system() && cursor_.take("{%endif%}");
    return split_;
  }

  // Reads what is done if the conversation starts without a system message.
  bool read_no_system() {
    bool same = loop_ == "messages";
    if (cursor_.take("{%else%}")) {
      for (;;) {
        if (cursor_.take("{%set loop_messages=messages%}")) {
          same = true;
        } else if (cursor_.take("{%set system_message=false%}")) {
          no_system_ = "false";
        } else if (cursor_.take("{%set system_message=''%}")) {
          no_system_ = "''";
        } else {
          break;
        }
      }
    }
    return same;
  }

  bool read_leading_system() {
    const auto terms = cursor_.take_terms();
    if (!terms || !cursor_.take("}}")) return false;
    leading_ = form_around(*terms, "messages[0].content", names_);
    std::string text;
    if (cursor_.take("{%else%}{{'*'}}", {&text}) && !read_default(text)) return false;
    return leading_ && cursor_.take("{%endif%}");
  }

  // Reads a header with dates that holds the system message; it is written without a system message, too.
  bool read_dated_header() {
    if (!split_ || no_system_ != "''" || !cursor_.take("{{")) return false;
    auto terms = cursor_.take_terms();
    if (!terms || !cursor_.take("}}")) return false;
    for (TemplateTerm& term : *terms)
      if (!term.literal && term.text == "date_string" && !term.strip) term = {true, date_, false};
    leading_ = form_around(*terms, "system_message", names_);
    if (!leading_ || leading_->strip) return false;
    leading_->strip = strip_system_;
    format_.default_system = "";
    return true;
  }

  // Takes a whole default system message as a literal; settle_system() finds its content.
  bool read_default(const std::string& text) {
    if (default_) return false;
    default_ = text;
    return true;
  }

  bool read_loop() {
    if (!cursor_.take("{%for message in " + loop_ + "%}")) return false;
    if (cursor_.take("{%if (message.role=='user')!=(loop.index0%2==0)%}{{raise_exception('*')}}{%endif%}"))
      format_.alternate = true;
    std::string text;
    if (cursor_.take("{%if loop.first and messages[0].role!='system'%}{{'*'}}{%endif%}", {&text})) {
      if (!read_default(text)) return false;
      in_loop_ = true;
    }
    if (cursor_.take("{%set content=message.content%}")) content_ = "content";
    if (!read_fold() || !read_body()) return false;
    if (cursor_.take("{%if loop.last and add_generation_prompt%}{{'*'}}{%endif%}", {&format_.open})) opened_ = true;
    return cursor_.take("{%endfor%}");
  }

  // Reads the system message written inside the first user message, where the body of the loop does not do it.
  bool read_fold() {
    if (!cursor_.take(
            "{%if loop.index0==0 and system_message!=false%}{%set content='*'+system_message+'*'+message.content"
            "%}{%else%}{%set content=message.content%}{%endif%}",
            {&format_.fold_before, &format_.fold_after}))
      return true;
    if (!split_ || no_system_ != "false" || strip_system_ || content_ == "content") return false;
    content_ = "content";
    format_.system_place = SystemPlace::kFirstUser;
    folded_ = true;
    return true;
  }

  bool read_body() {
    if (cursor_.take("{%if message.role=='user' or message.role=='system' and not loop.first or "
                     "message.role=='assistant'%}")) {
      skips_first_ = true;
      return read_named_body() && cursor_.take("{%endif%}");
    }
    if (cursor_.take("{%if message.role=='user' or message.role=='system' and not loop.first%}")) {
      skips_first_ = true;
      return read_named_body() && cursor_.take("{%elif message.role=='assistant'%}") && read_assistant_apart() &&
             cursor_.take("{%endif%}");
    }
    if (cursor_.take("{%set content=")) return read_stored_body();
    if (cursor_.take("{%if message.role=='assistant'%}{%set role='*'%}{%else%}{%set role=message.role%}{%endif%}",
                     {&assistant_name_}))
      return read_named_body();
    return read_named_body() || read_branches();
  }

  // {{'...'+message.role+'...'+message.content+'...'}}
  bool read_named_body() {
    const CanonicalCursor before = cursor_;
    if (cursor_.take("{{"))
      if (auto terms = cursor_.take_terms(); terms && cursor_.take("}}") && take_named_forms(std::move(*terms)))
        return true;
    cursor_ = before;
    return false;
  }

  bool read_assistant_apart() {
    if (!cursor_.take("{{")) return false;
    auto terms = cursor_.take_terms();
    if (!terms || !cursor_.take("}}")) return false;
    const auto form = form_around(with_role(std::move(*terms), "assistant"), content_, names_);
    if (form) format_.assistant = *form;
    return form.has_value();
  }

  // Reads the same with BOS before the first message.
  bool read_stored_body() {
    auto terms = cursor_.take_terms();
    if (!terms || !cursor_.take("%}{%if loop.index0==0%}{%set content=bos_token+content%}{%endif%}{{content}}"))
      return false;
    if (std::exchange(format_.bos, true)) return false;
    return take_named_forms(std::move(*terms));
  }

  bool take_named_forms(Terms terms) {
    for (TemplateTerm& term : terms)
      if (!term.literal && term.text == "role" && !assistant_name_.empty()) term.text = "message.role";
    const std::string assistant = assistant_name_.empty() ? "assistant" : assistant_name_;
    const auto user = form_around(with_role(terms, "user"), content_, names_);
    if (!user) return false;
    format_.user = *user;
    format_.assistant = *form_around(with_role(terms, assistant), content_, names_);
    format_.late_system = *form_around(with_role(terms, "system"), content_, names_);
    has_system_form_ = true;
    return true;
  }

  // Reads one branch for each role.
  bool read_branches() {
    for (const char* word : {"{%if ", "{%elif ", "{%elif "}) {
      if (cursor_.take(std::string(word) + "message.role=='user'%}")) {
        if (!read_user()) return false;
      } else if (cursor_.take(std::string(word) + "message.role=='assistant'%}")) {
        if (!read_output(&format_.assistant)) return false;
      } else if (cursor_.take(std::string(word) + "message.role=='system' and message.content%}")) {
        format_.skip_empty_system = true;
        has_system_form_ = true;
        if (!read_output(&format_.late_system)) return false;
      } else if (cursor_.take(std::string(word) + "message.role=='system'%}")) {
        has_system_form_ = true;
        if (!read_output(&format_.late_system)) return false;
      } else {
        break;
      }
    }
    format_.late = has_system_form_ ? LateSystem::kOwnMessage : LateSystem::kDropped;
    if (cursor_.take("{%else%}{{raise_exception('*')}}")) {
      if (has_system_form_) return false;
      format_.late = LateSystem::kRefused;
    }
    // User and assistant both have a form: no template writes a message with nothing around it.
    return cursor_.take("{%endif%}") && !(format_.user.before + format_.user.after).empty() &&
           !(format_.assistant.before + format_.assistant.after).empty();
  }

  bool read_output(ChatForm* form) {
    if (!cursor_.take("{{")) return false;
    const auto terms = cursor_.take_terms();
    if (!terms || !cursor_.take("}}")) return false;
    const auto found = form_around(*terms, content_, names_);
    if (found) *form = *found;
    return found.has_value();
  }

  bool read_user() {
    const bool last = cursor_.take("{%if loop.last and system_message is defined%}");
    if (last || cursor_.take("{%if loop.first and system_message is defined%}")) return read_folding_user(last);
    if (cursor_.take("{{bos_token+")) {
      const auto terms = cursor_.take_terms();
      const auto form = terms ? form_around(*terms, content_, names_) : std::nullopt;
      if (!form || format_.bos || !cursor_.take("}}")) return false;
      format_.user = *form;
      format_.bos_again = true;
      return true;
    }
    return read_output(&format_.user);
  }

  // Reads the form of a user message with the system message inside, then the form of one without.
  bool read_folding_user(bool last) {
    std::string before;
    std::string between;
    std::string after;
    if (!split_ || !no_system_.empty() || strip_system_ ||
        !cursor_.take("{{'*'+system_message+'*'+message.content+'*'}}{%else%}", {&before, &between, &after}) ||
        !read_output(&format_.user) || !cursor_.take("{%endif%}"))
      return false;
    const ChatForm& user = format_.user;
    if (user.strip || !before.starts_with(user.before) || after != user.after) return false;
    format_.fold_before = before.substr(user.before.size());
    format_.fold_after = between;
    format_.system_place = last ? SystemPlace::kLastUser : SystemPlace::kFirstUser;
    folded_ = true;
    return true;
  }

  // Reads what comes after the loop.
  bool read_end() {
    if (!opened_ && cursor_.take("{%if add_generation_prompt%}{{'*'}}", {&format_.open})) {
      std::string more;
      if (cursor_.take("{%if not enable_thinking%}{{'*'}}{%endif%}", {&more})) format_.open += more;
      if (cursor_.take("{%else%}{{eos_token}}")) format_.final = names_.eos;
      return cursor_.take("{%endif%}");
    }
    // The first Llama 3 opens an answer whether it is asked to or not.
    if (!opened_ && format_.final.empty() && cursor_.take("{{'*'}}", {&format_.open})) format_.final = format_.open;
    return true;
  }

  // Decides where the first system message goes, once the whole template has been read.
  bool settle_system() {
    if (refused_) {
      format_.system_place = SystemPlace::kRefused;
      return !split_ && !leading_ && !default_;
    }
    // Stripping the user's text would strip the system message too, unless some text precedes it.
    if (folded_ && format_.user.strip && (format_.fold_before.empty() || format_.fold_before[0] <= ' ')) return false;
    if (folded_) return !leading_ && !default_ && !has_system_form_;
    // A system message that the loop does not see must have been written before the loop.
    if ((split_ || skips_first_) != leading_.has_value()) return false;
    if (!has_system_form_) {
      format_.system_place = SystemPlace::kDropped;
      if (format_.late == LateSystem::kRefused) format_.system_place = SystemPlace::kRefused;
      return !leading_ && !default_;
    }
    format_.system = leading_ ? *leading_ : format_.late_system;
    if (!default_) return true;
    const ChatForm& form = format_.system;
    if (default_->size() < form.before.size() + form.after.size() || !default_->starts_with(form.before) ||
        !default_->ends_with(form.after) || format_.default_system || (in_loop_ && leading_))
      return false;
    format_.default_system =
        default_->substr(form.before.size(), default_->size() - form.before.size() - form.after.size());
    return true;
  }

  CanonicalCursor cursor_;
  const TemplateNames& names_;
  ChatFormat format_;
  std::string loop_ = "messages";            // the list that the loop goes over
  std::string content_ = "message.content";  // a message's content, in the loop
  std::string assistant_name_;               // the assistant's role as written, unless it is "assistant"
  std::string date_;
  std::optional<ChatForm> leading_;     // a system message written before the loop
  std::optional<std::string> default_;  // a literal system message, for conversations without one
  bool split_ = false;                  // the system message is taken out of the messages
  std::string no_system_;               // value of system_message without a system message; empty: undefined
  bool strip_system_ = false;           // the system message is stripped when it is taken out
  bool skips_first_ = false;            // the loop skips the first system message
  bool in_loop_ = false;                // default_ is written inside the loop
  bool folded_ = false;                 // the system message is written inside a user message
  bool refused_ = false;                // a system message raises an exception
  bool has_system_form_ = false;        // the loop has a form for system messages
  bool opened_ = false;                 // the opening of an answer has been read
};

}  // namespace

std::optional<ChatFormat> read_general_template(std::string_view text, const TemplateNames& names) {
  return GeneralReader(text, names).read();
}

}  // namespace kvasir
