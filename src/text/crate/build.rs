// SPDX-License-Identifier: Apache-2.0
//! Generates and compiles the C++ side of the bridge; it ends up in the static library.

fn main() {
    cxx_build::bridge("src/lib.rs").std("c++20").compile("tandem_text_bridge");
    println!("cargo:rerun-if-changed=src/lib.rs");
}
