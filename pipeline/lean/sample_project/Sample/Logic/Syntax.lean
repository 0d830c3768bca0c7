import Lean

/-!
# Declarations that are only mentioned

A macro that expands to a theorem declares nothing where it is written.
-/

open Lean

/-- The word that Mathlib adds. -/
syntax (name := lemmaCommand) declModifiers "lemma " declId declSig declVal : command

macro_rules
  | `($mods:declModifiers lemma $id:declId $sig:declSig $val:declVal) =>
    `($mods:declModifiers theorem $id:declId $sig:declSig $val:declVal)

macro "declare_truth " name:ident : command => `(theorem $name : True := by
  trivial)

declare_truth expanded

namespace Sample.Syntax

lemma first (n : Nat) : n + 0 = n := rfl

@[simp] lemma second (n : Nat) :
    0 + n = n :=
  Nat.zero_add n

/-- A helper of the compiler, where `lemma` is a name. -/
def quoted : MacroM Lean.Syntax := do
  let stx ← `(command|
theorem insideQuotation : True := by
  trivial
)
  return stx

lemma third (p q : Prop) (h : p ↔ q) : q ↔ p where
  mp := h.mpr
  mpr := h.mp

theorem uses_expanded : True := expanded

#check uses_expanded

end Sample.Syntax
