// SPDX-License-Identifier: Apache-2.0
// The only user of CLI11: it gets each command's flag list for parsing and for the help text.
#include "config/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "config/config_file.h"
#include "config/version.h"

namespace tandem::config {
namespace {

Status invalid(std::string message) { return Status(Code::kInvalidArgument, std::move(message)); }

constexpr int kMaxValues = 1 << 16;  // of one list flag

/// One command: its flags, and CLI11's picture of them.
class Command {
 public:
  Command(std::string name, std::string about, std::vector<std::string>& notes)
      : flags(notes), app_(std::move(about), "tandem " + name), name_(std::move(name)) {
    app_.get_formatter()->column_width(44);
    app_.get_formatter()->label("REQUIRED", "");
  }

  FlagList flags;

  /// A name and help line for what stands without a flag; canonical_arguments collects the values.
  void positional(std::string name, std::string help) { positionals_.emplace_back(std::move(name), std::move(help)); }

  /// What --help showed, or --help=all, =listgroup, =<group>, =<part of a flag's name>.
  Result<std::string> help() {
    if (help_topic_ == "listgroup") return fmt::format("{}\n", fmt::join(groups(), "\n"));
    if (!help_topic_.empty() && help_topic_ != "all" && help_topic_ != "page") {
      TANDEM_TRY(show_only(help_topic_));
    }
    register_flags();
    return app_.help();
  }

  /// Sets every flag that was given. nullopt if --help was among them.
  Result<std::optional<Arguments>> parse(std::span<const std::string> arguments) {
    for (const std::string& argument : arguments) {
      if (argument == "--") break;
      if (!argument.starts_with(kHelpTopic)) continue;
      help_topic_ = argument.substr(kHelpTopic.size());
      return std::optional<Arguments>();
    }
    FlagForms forms = flags.forms();
    forms.flags.push_back(FlagForm{"--help", Arity::kNone});
    forms.short_forms.emplace_back("-h", "--help");
    TANDEM_ASSIGN(Arguments given, canonical_arguments(arguments, forms));
    if (std::find(given.canonical.begin(), given.canonical.end(), "--help") != given.canonical.end())
      return std::optional<Arguments>();
    register_flags();
    std::vector<std::string> reversed(given.canonical.rbegin(), given.canonical.rend());
    try {
      app_.parse(std::move(reversed));
    } catch (const CLI::Error& error) {
      return invalid(error.what());
    }
    for (std::size_t i = 0; i < options_.size(); ++i) {
      if (options_[i]->count() == 0) continue;
      const Flag& flag = flags.flags()[i];
      if (auto result = flag.set(options_[i]->results()); !result)
        return result.error().context("argument " + flag.form.name);
    }
    return std::optional(std::move(given));
  }

 private:
  std::vector<std::string> groups() const {
    std::vector<std::string> names;
    for (const Flag& flag : flags.flags())
      if (!flag.group.empty() && std::find(names.begin(), names.end(), flag.group) == names.end())
        names.push_back(flag.group);
    return names;
  }

  /// A group by its name, else the flags whose names hold the text.
  Result<void> show_only(const std::string& topic) {
    const std::string wanted = lower(topic);
    const std::vector<std::string> known = groups();
    const bool is_group =
        std::any_of(known.begin(), known.end(), [&](const auto& name) { return lower(name) == wanted; });
    std::string part = wanted;
    std::replace(part.begin(), part.end(), '_', '-');
    for (const Flag& flag : flags.flags()) {
      const bool shown = is_group ? lower(flag.group) == wanted : flag.form.name.find(part) != std::string::npos;
      if (shown && !flag.group.empty()) shown_.push_back(flag.form.name);
    }
    if (!shown_.empty()) return {};
    const std::string near = nearest_name(topic, known);
    return invalid(fmt::format("--help={}: no group or flag of that name{}; groups are {}", topic,
                               near.empty() ? "" : fmt::format(" (did you mean {}?)", near), fmt::join(known, ", ")));
  }

  static std::string lower(std::string text) {
    for (char& c : text) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
    return text;
  }

  void register_flags() {
    if (!options_.empty()) return;
    for (const auto& [name, help] : positionals_) app_.add_option(name, accept_, help)->type_name("");
    for (const Flag& flag : flags.flags()) options_.push_back(register_flag(flag));
  }

  CLI::Option* register_flag(const Flag& flag) {
    std::string names = flag.form.name;
    for (const std::string& name : flag.short_forms)
      if (name.size() == 2) names = name + "," + names;  // longer ones are no names to CLI11 and are resolved by now
    std::string help = flag.help;
    if (!flag.default_text.empty()) help += fmt::format(" [{}]", flag.default_text);
    CLI::Option* option = nullptr;
    if (flag.form.arity == Arity::kNone) {
      if (flag.form.negatable) names += ",!--no-" + flag.form.name.substr(2);
      option = app_.add_flag(names, switch_, help);
    } else {
      option = app_.add_option(names, accept_, help)->type_name(flag.metavar);
      option->expected(1, flag.form.arity == Arity::kMany ? kMaxValues : 1);
    }
    const bool hidden = !shown_.empty() && std::find(shown_.begin(), shown_.end(), flag.form.name) == shown_.end();
    return option->group(hidden ? "" : flag.group);
  }

  static constexpr std::string_view kHelpTopic = "--help=";

  CLI::App app_;
  std::string name_;
  std::vector<std::pair<std::string, std::string>> positionals_;
  std::string help_topic_;
  std::vector<std::string> shown_;     ///< names of the flags that help is about; empty: all
  std::vector<CLI::Option*> options_;  ///< one for each flag, owned by app_
  CLI::callback_t accept_ = [](const CLI::results_t&) { return true; };
  bool switch_ = false;
};

constexpr std::string_view kOverview =
    "tandem: large language models with prefill and decode on separate instances\n"
    "\n"
    "Usage: tandem COMMAND [FLAGS]    (tandem COMMAND --help for its flags)\n"
    "\n"
    "Commands:\n"
    "  serve   one instance: OpenAI endpoints over a model; prefiller, decoder or both\n"
    "  proxy   pairs prefillers and decoders behind one address\n"
    "  up      a whole deployment on this machine\n"
    "  quantize        a float model into W8A8 files, and what that changes\n"
    "  ranktable       the rank table of an Ascend cluster: make, merge, check\n"
    "  check network   links, addresses and ways between all devices and hosts, as one table\n"
    "  check agent     answers check network from another node\n"
    "  bench serve     a load generator: `vllm bench serve`, its datasets, rates and figures\n"
    "\n"
    "  --version   print the version\n"
    "  --help      print this text\n";

Result<Text> help_of(Command& command) {
  TANDEM_ASSIGN(std::string text, command.help());
  return Text{std::move(text)};
}

Result<CommandLine> parse_serve(std::span<const std::string> arguments, const Environment& environment) {
  CommandLine line;
  Command command("serve", "One instance: OpenAI endpoints over a model, as `vllm serve`.", line.notes);
  ServeOptions options(command.flags);
  command.positional("model", "model folder (Hugging Face) or .gguf file");
  TANDEM_ASSIGN(const ExpandedArguments expanded, expand_config_file(arguments));
  TANDEM_ASSIGN(auto given, command.parse(expanded.arguments));
  if (!given) {
    TANDEM_ASSIGN(line.command, help_of(command));
    return line;
  }
  if (!given->rest.empty()) given->positional.insert(given->positional.end(), given->rest.begin(), given->rest.end());
  if (expanded.model) {
    if (given->positional.empty()) given->positional.emplace_back();
    given->positional[0] = *expanded.model;
  }
  TANDEM_ASSIGN(line.command, options.finish(given->positional, environment, line.notes));
  return line;
}

Result<CommandLine> parse_up(std::span<const std::string> arguments) {
  CommandLine line;
  Command command("up",
                  "Starts prefillers, decoders and a proxy on this machine. Flags after -- go to every `tandem serve`.",
                  line.notes);
  UpOptions options(command.flags);
  command.positional("deployment", "deployment file (YAML), in place of --model, --prefill and --decode");
  auto parsed = command.parse(arguments);
  if (!parsed && parsed.error().message().starts_with("unrecognized arguments"))
    return Status(Code::kInvalidArgument, parsed.error().message() + " (flags for `tandem serve` go after --)");
  TANDEM_ASSIGN(auto given, std::move(parsed));
  if (!given) {
    TANDEM_ASSIGN(line.command, help_of(command));
    return line;
  }
  TANDEM_ASSIGN(line.command, options.finish(given->positional, std::move(given->rest)));
  return line;
}

/// Commands whose options need no more than flags and, some of them, the environment.
template <class Options, class... Context>
Result<CommandLine> parse_plain(std::string name, std::string about, std::span<const std::string> arguments,
                                const Context&... context) {
  CommandLine line;
  Command command(std::move(name), std::move(about), line.notes);
  Options options(command.flags, context...);
  TANDEM_ASSIGN(auto given, command.parse(arguments));
  if (!given) {
    TANDEM_ASSIGN(line.command, help_of(command));
    return line;
  }
  given->positional.insert(given->positional.end(), given->rest.begin(), given->rest.end());
  TANDEM_ASSIGN(line.command, options.finish(given->positional));
  return line;
}

Result<CommandLine> parse_proxy(std::span<const std::string> arguments, const Environment& environment) {
  return parse_plain<ProxyOptions>("proxy", "Pairs prefillers and decoders behind one address.", arguments,
                                   environment);
}

Result<CommandLine> parse_quantize(std::span<const std::string> arguments) {
  return parse_plain<QuantizeOptions>(
      "quantize",
      "tandem quantize SRC DST: writes the model in SRC as W8A8 files that vLLM-Ascend and `tandem serve` load, and "
      "reports the error.",
      arguments);
}

Result<CommandLine> parse_ranktable(std::span<const std::string> arguments, const Environment& environment) {
  return parse_plain<RanktableOptions>(
      "ranktable", "Makes the rank table of a deployment, merges the shares of its nodes, or checks one.", arguments,
      environment);
}

Result<CommandLine> parse_bench(std::span<const std::string> arguments, const Environment& environment) {
  const std::string what = arguments.empty() ? "" : arguments[0];
  if (what == "--help" || what == "-h") return CommandLine{Text{"Usage: tandem bench serve [FLAGS]\n"}, {}};
  if (what != "serve")
    return invalid(fmt::format("bench: expected serve, found {}", what.empty() ? "nothing" : "'" + what + "'"));
  CommandLine line;
  Command command("bench serve", "Sends requests to an OpenAI server and measures the answers, as `vllm bench serve`.",
                  line.notes);
  BenchOptions options(command.flags);
  TANDEM_ASSIGN(auto given, command.parse(arguments.subspan(1)));
  if (!given) {
    TANDEM_ASSIGN(line.command, help_of(command));
    return line;
  }
  given->positional.insert(given->positional.end(), given->rest.begin(), given->rest.end());
  TANDEM_ASSIGN(line.command, options.finish(given->positional, environment));
  return line;
}

Result<CommandLine> parse_check(std::span<const std::string> arguments, const Environment& environment) {
  const std::string what = arguments.empty() ? "" : arguments[0];
  if (what == "network")
    return parse_plain<CheckNetworkOptions>(
        "check network", "Checks the network of all nodes, devices and hosts; exit code 0 only if all is well.",
        arguments.subspan(1), environment);
  if (what == "agent")
    return parse_plain<CheckAgentOptions>("check agent", "Answers `tandem check network` that runs on another node.",
                                          arguments.subspan(1), environment);
  if (what == "--help" || what == "-h")
    return CommandLine{Text{"Usage: tandem check network [FLAGS]\n       tandem check agent [FLAGS]\n"}, {}};
  return invalid(
      fmt::format("check: expected network or agent, found {}", what.empty() ? "nothing" : "'" + what + "'"));
}

}  // namespace

Result<CommandLine> parse_command_line(std::span<const std::string> arguments, const Environment& environment) {
  static const std::vector<std::string> kCommands = {"serve", "proxy", "up", "quantize", "ranktable", "check", "bench"};
  if (arguments.empty())
    return invalid(
        "a command is missing; expected serve, proxy, up, quantize, ranktable, check or bench (tandem --help tells "
        "more)");
  const std::string& name = arguments[0];
  if (name == "--help" || name == "-h" || name == "help") return CommandLine{Text{std::string(kOverview)}, {}};
  if (name == "--version" || name == "-v" || name == "-V")
    return CommandLine{Text{fmt::format("tandem {}\n", version())}, {}};
  auto line = [&]() -> Result<CommandLine> {
    const auto rest = arguments.subspan(1);
    if (name == "serve") return parse_serve(rest, environment);
    if (name == "proxy") return parse_proxy(rest, environment);
    if (name == "up") return parse_up(rest);
    if (name == "quantize") return parse_quantize(rest);
    if (name == "ranktable") return parse_ranktable(rest, environment);
    if (name == "check") return parse_check(rest, environment);
    if (name == "bench") return parse_bench(rest, environment);
    const std::string near = nearest_name(name, kCommands);
    return invalid(fmt::format("unknown command '{}'{}; expected serve, proxy, up, quantize, ranktable, check or bench",
                               name, near.empty() ? "" : fmt::format(" (did you mean {}?)", near)));
  }();
  return line;
}

}  // namespace tandem::config
