//! The `tune` command with the model families that come with batchtune.

batchtune::declare_allocator!();

fn main() -> std::process::ExitCode {
    batchtune::main(batchtune::Registry::builtin())
}
