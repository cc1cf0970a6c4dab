//! Which names a sandbox may reach at which ports.

use std::collections::HashMap;

use crate::name::HostName;

/// What a rule, or the want of one, says of a name at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Denied,
    /// Where the connection itself says the name.
    Named,
    /// Whatever the connection carries: its address alone decides.
    Any,
}

/// A name, or all names below one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    pub name: HostName,
    /// One label or more stand before `name`; it is not meant itself.
    pub is_wildcard: bool,
}

impl Pattern {
    /// `NAME` or `*.NAME`.
    pub fn parse(text: &str) -> Option<Self> {
        let (text, is_wildcard) = text.strip_prefix("*.").map_or((text, false), |name| (name, true));
        HostName::parse(text.as_bytes()).map(|name| Self { name, is_wildcard })
    }
}

/// Ports, both ends included, and what is said of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    pub low: u16,
    pub high: u16,
    pub verdict: Verdict,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub pattern: Pattern,
    /// The first that fits decides.
    pub ports: Vec<Ports>,
}

impl Rule {
    fn verdict(&self, port: u16) -> Option<Verdict> {
        let fitting = self.ports.iter().find(|ports| (ports.low..=ports.high).contains(&port));
        fitting.map(|ports| ports.verdict)
    }
}

/// Rules in their order: the first that fits name and port decides, be it a permission or a denial.
#[derive(Debug, Default)]
pub struct Policy {
    rules: Vec<Rule>,
    exact: HashMap<HostName, Vec<usize>>,
    wildcards: HashMap<HostName, Vec<usize>>,
    has_any: bool,
}

impl Policy {
    pub fn new(rules: Vec<Rule>) -> Self {
        let mut policy = Self::default();
        for (index, rule) in rules.iter().enumerate() {
            let by_name = if rule.pattern.is_wildcard { &mut policy.wildcards } else { &mut policy.exact };
            by_name.entry(rule.pattern.name.clone()).or_default().push(index);
        }
        policy.has_any = rules.iter().flat_map(|rule| &rule.ports).any(|ports| ports.verdict == Verdict::Any);
        policy.rules = rules;
        policy
    }

    /// Whether it lets anything through unread.
    pub fn has_any(&self) -> bool {
        self.has_any
    }

    /// What is said of a name at a port. No rule is a denial.
    pub fn verdict(&self, name: &HostName, port: u16) -> Verdict {
        let exact = self.exact.get(name).into_iter();
        let above = name.parents().filter_map(|parent| self.wildcards.get(parent));
        let fitting = exact.chain(above).filter_map(|indices| {
            indices.iter().find_map(|index| Some((*index, self.rules.get(*index)?.verdict(port)?)))
        });
        fitting.min_by_key(|(index, _)| *index).map_or(Verdict::Denied, |(_, verdict)| verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(pattern: &str, ports: &[(u16, u16)], verdict: Verdict) -> Rule {
        let ports = ports.iter().map(|(low, high)| Ports { low: *low, high: *high, verdict }).collect();
        Rule { pattern: Pattern::parse(pattern).expect(pattern), ports }
    }

    fn verdict(policy: &Policy, name: &str, port: u16) -> Verdict {
        policy.verdict(&HostName::parse(name.as_bytes()).expect(name), port)
    }

    #[test]
    fn a_wildcard_is_one_label_or_more() {
        let policy = Policy::new(vec![rule("*.a.test", &[(443, 443)], Verdict::Named)]);
        for (name, expected) in [
            ("x.a.test", Verdict::Named),
            ("x.y.a.test", Verdict::Named),
            ("X.A.test", Verdict::Named),
            ("a.test", Verdict::Denied),
            ("xa.test", Verdict::Denied),
            ("test", Verdict::Denied),
            ("a.test.b.test", Verdict::Denied),
        ] {
            assert_eq!(verdict(&policy, name, 443), expected, "{name}");
        }
        assert_eq!(verdict(&policy, "x.a.test", 80), Verdict::Denied);
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let policy = Policy::new(vec![
            rule("ssh.a.test", &[(22, 22)], Verdict::Any),
            rule("bad.a.test", &[(1, 65_535)], Verdict::Denied),
            rule("*.a.test", &[(80, 80), (443, 443)], Verdict::Named),
            rule("bad.a.test", &[(443, 443)], Verdict::Named),
        ]);
        assert_eq!(verdict(&policy, "bad.a.test", 443), Verdict::Denied);
        assert_eq!(verdict(&policy, "ssh.a.test", 22), Verdict::Any);
        assert_eq!(verdict(&policy, "ssh.a.test", 443), Verdict::Named);
        assert_eq!(verdict(&policy, "ok.a.test", 80), Verdict::Named);
        assert_eq!(verdict(&policy, "ok.a.test", 22), Verdict::Denied);
    }
}
