// SPDX-License-Identifier: Apache-2.0
//! The atomics that rings share with drivers. In tests of the memory model they are loom's atomics of the same
//! address.

#[cfg(test)]
pub use modelled::*;
#[cfg(not(test))]
pub use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, fence};

#[cfg(test)]
pub mod modelled {
    use loom::sync::atomic as modelled;
    use std::cell::RefCell;
    use std::collections::HashMap;
    use std::rc::Rc;
    use std::sync::atomic::{self, Ordering};

    /// A model's replacement of memory.
    pub struct Model {
        /// Words by their addresses.
        pub words: HashMap<usize, Rc<modelled::AtomicU64>>,
        /// Whether the fences of the rings take effect.
        pub fenced: bool,
    }

    thread_local! {
        /// All threads of a model take turns on one thread.
        pub static MODEL: RefCell<Option<Model>> = const { RefCell::new(None) };
    }

    fn word(address: usize) -> Option<Rc<modelled::AtomicU64>> {
        MODEL.with_borrow(|model| model.as_ref()?.words.get(&address).cloned())
    }

    pub fn fence(order: Ordering) {
        match MODEL.with_borrow(|model| model.as_ref().map(|model| model.fenced)) {
            None => atomic::fence(order),
            Some(true) => modelled::fence(order),
            Some(false) => {}
        }
    }

    macro_rules! atomics {
        ($($name:ident $value:ty),*) => {$(
            #[repr(transparent)]
            pub struct $name(atomic::$name);

            impl $name {
                pub fn load(&self, order: Ordering) -> $value {
                    match word(std::ptr::from_ref(self).addr()) {
                        Some(word) => <$value>::try_from(word.load(order)).unwrap(),
                        None => self.0.load(order),
                    }
                }

                pub fn store(&self, value: $value, order: Ordering) {
                    match word(std::ptr::from_ref(self).addr()) {
                        Some(word) => word.store(value.into(), order),
                        None => self.0.store(value, order),
                    }
                }
            }
        )*};
    }

    atomics!(AtomicU16 u16, AtomicU32 u32, AtomicU64 u64);
}
