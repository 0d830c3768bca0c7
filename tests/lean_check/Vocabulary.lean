/-! Some of Mathlib's syntax, so that Lean's parser gets to the end of more of its proofs. Only the
shape matters: nothing here is ever elaborated. -/

syntax (name := lemmaCommand) declModifiers "lemma " declId declSig declVal : command
syntax "#align " ident ppSpace ident : command
syntax "#noalign " ident : command
syntax "#align_import " ident " from " str "@" str : command
syntax "alias " ident " := " ident : command
syntax "alias " "⟨" ident ", " ident "⟩" " := " ident : command
syntax "assert_not_exists " ident : command
syntax "initialize_simps_projections " ident : command
syntax "initialize_simps_projections " ident " (" term,* ")" : command

syntax "to_additive" ("(" &"attr" " := " attr,* ")")? (ppSpace ident)? (ppSpace str)? : attr
syntax "simps" (ppSpace ident)* : attr
syntax "simps!" (ppSpace ident)* : attr

syntax:50 term:51 " ≃ " term:51 : term
syntax:25 term:26 " →+ " term:25 : term
syntax:25 term:26 " →* " term:25 : term
syntax:25 term:26 " →+* " term:25 : term
syntax:25 term:26 " ≃+* " term:25 : term
syntax:25 term:26 " →ₗ[" term "] " term:25 : term
syntax:25 term:26 " ≃ₗ[" term "] " term:25 : term
syntax:25 term:26 " →ₐ[" term "] " term:25 : term
syntax:25 term:26 " →L[" term "] " term:25 : term
syntax:68 term:68 " ⊔ " term:69 : term
syntax:69 term:69 " ⊓ " term:70 : term
syntax:max "⊤" : term
syntax:max "⊥" : term
syntax:80 term:80 " '' " term:81 : term
syntax:80 term:80 " ⁻¹' " term:81 : term
syntax:max term:max "ᶜ" : term
syntax:max term:max "ᵒᵖ" : term
syntax:max term:max "ᵒᵈ" : term
syntax:max term:max "ˣ" : term
syntax:82 term:82 " ×ˢ " term:83 : term
syntax:80 term:81 " ≫ " term:80 : term
syntax:10 term:11 " ⟶ " term:10 : term
syntax:26 term:26 " ⥤ " term:27 : term
syntax:10 term:10 " ≅ " term:11 : term
syntax:80 term:80 " ⋙ " term:81 : term
syntax:max "𝟙" : term
syntax:max "𝓝" : term
syntax:max "‖" term "‖" : term
syntax:max "⌊" term "⌋" : term
syntax:max "⌈" term "⌉" : term
syntax:max "⟦" term "⟧" : term
syntax:max "{" term " | " term "}" : term
syntax:max "{" ident " : " term " | " term "}" : term
syntax:67 "∑ " term (" in " term)? ", " term:67 : term
syntax:67 "∑ " ident " : " term ", " term:67 : term
syntax:67 "∏ " term (" in " term)? ", " term:67 : term
syntax:67 "∏ " ident " : " term ", " term:67 : term
syntax:60 "⨆ " term ", " term:60 : term
syntax:60 "⨅ " term ", " term:60 : term
syntax:60 "⋃ " term ", " term:60 : term
syntax:60 "⋂ " term ", " term:60 : term
syntax:max "∃! " term ", " term : term
syntax:max "⇑" term:max : term
syntax:max "↥" term:max : term
syntax:70 term:70 " ⧸ " term:71 : term
syntax:max "Type*" : term
syntax:max "Sort*" : term

syntax "ring" : tactic
syntax "ring_nf" (Lean.Parser.Tactic.location)? : tactic
syntax "abel" : tactic
syntax "group" : tactic
syntax "tauto" : tactic
syntax "aesop" : tactic
syntax "aesop_cat" : tactic
syntax "continuity" : tactic
syntax "positivity" : tactic
syntax "gcongr" : tactic
syntax "push_cast" : tactic
syntax "push_neg" (Lean.Parser.Tactic.location)? : tactic
syntax "field_simp" ("[" term,* "]")? (Lean.Parser.Tactic.location)? : tactic
syntax "norm_num" ("[" term,* "]")? (Lean.Parser.Tactic.location)? : tactic
syntax "linarith" ("[" term,* "]")? : tactic
syntax "nlinarith" ("[" term,* "]")? : tactic
syntax "simp_rw " "[" term,* "]" (Lean.Parser.Tactic.location)? : tactic
syntax "use " term,+ : tactic
syntax "convert " term (" using " num)? : tactic
syntax "cases' " term (" with " (colGt ident)+)? : tactic
syntax "induction' " term (" with " (colGt ident)+)? : tactic
syntax "choose " (colGt ident)+ " using " term : tactic
syntax "set " ident " := " term (" with " ident)? : tactic
syntax "lift " term " to " term (" using " term)? : tactic
syntax "filter_upwards" (" [" term,* "]")? (" with " (colGt term:max)+)? (" using " term)? : tactic
syntax "by_contra" (ppSpace colGt ident)? : tactic
syntax "contrapose!" (ppSpace colGt ident)? : tactic
syntax "nth_rw " num "[" term,* "]" : tactic
syntax "ext1" (ppSpace colGt ident)* : tactic
