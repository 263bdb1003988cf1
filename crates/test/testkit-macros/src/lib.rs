// SPDX-License-Identifier: Apache-2.0
//! The attribute `#[test]` of `vtax-testkit`.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use proc_macro::{Delimiter, Group, TokenStream, TokenTree};

/// Registers a function as a test: `#[test]`, or `#[test(needs = [kvm(), program("nasm")])]` with requirements of
/// `vtax_testkit::needs`, which are checked before the function is called.
#[proc_macro_attribute]
pub fn test(arguments: TokenStream, item: TokenStream) -> TokenStream {
    match registered(arguments, &item) {
        Ok(registration) => item.into_iter().chain(registration).collect(),
        Err(message) => format!("compile_error!({message:?});")
            .parse()
            .unwrap_or_default(),
    }
}

fn registered(arguments: TokenStream, item: &TokenStream) -> Result<TokenStream, String> {
    let needs = requirements(arguments)?;
    let mut words = item
        .clone()
        .into_iter()
        .skip_while(|token| !is(token, "fn"));
    let Some(TokenTree::Ident(name)) = words.nth(1) else {
        return Err("#[test] is for a function".to_owned());
    };
    let text = format!(
        "::vtax_testkit::inventory::submit! {{ ::vtax_testkit::Test {{
            path: ::core::concat!(::core::module_path!(), \"::\", ::core::stringify!({name})),
            needs: || {{
                #[allow(unused_imports, reason = \"a test may need nothing\")]
                use ::vtax_testkit::needs::*;
                ::std::vec::Vec::from({needs})
            }},
            run: || {{ {name}(); }},
        }} }}"
    );
    text.parse().map_err(|error| format!("{error}"))
}

/// The list of `needs = [...]`; an empty one where nothing is needed.
fn requirements(arguments: TokenStream) -> Result<Group, String> {
    let tokens: Vec<TokenTree> = arguments.into_iter().collect();
    match tokens.as_slice() {
        [] => Ok(Group::new(Delimiter::Bracket, TokenStream::new())),
        [word, _, TokenTree::Group(list)]
            if is(word, "needs") && list.delimiter() == Delimiter::Bracket =>
        {
            Ok(list.clone())
        }
        _ => Err("a test's requirements are written needs = [root(), kvm()]".to_owned()),
    }
}

fn is(token: &TokenTree, word: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if ident.to_string() == word)
}
